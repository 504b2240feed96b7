-- What is there is sealed when this has run: `sealEveryRow` in src/db/seal.ts.
ALTER TABLE `account` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `answer` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `epoch` ADD `accepted_faults` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `epoch` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `funding` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `installation` ADD `quiet_commits` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `installation` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `key` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `master_key` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `operation` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `resource` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `router_key` ADD `seal` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `wallet` ADD `seal` integer DEFAULT 0 NOT NULL;
