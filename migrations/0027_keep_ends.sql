-- An order to end a keep has a row of its own, so that a late repetition of it does nothing.
CREATE TABLE `__new_keep` (
	`id` text PRIMARY KEY NOT NULL,
	`wallet_id` text NOT NULL,
	`resource_id` text NOT NULL,
	`idempotency_key` text NOT NULL,
	`fingerprint` blob NOT NULL,
	`request_id` text NOT NULL,
	`tags` text,
	`extend_seconds` integer NOT NULL,
	`max_seconds` integer NOT NULL,
	`bought_seconds` integer NOT NULL,
	`operation_id` text,
	`cpu_source` text,
	`waiting` text,
	`created_at` integer NOT NULL,
	`ended_at` integer,
	`end_reason` text,
	`end_message` text,
	`seal` integer NOT NULL,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`resource_id`) REFERENCES `resource`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`operation_id`) REFERENCES `operation`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "keep_step" CHECK("__new_keep"."extend_seconds" >= 0),
	CONSTRAINT "keep_bought" CHECK("__new_keep"."bought_seconds" >= 0 and "__new_keep"."bought_seconds" <= "__new_keep"."max_seconds"),
	CONSTRAINT "keep_ended" CHECK(("__new_keep"."ended_at" is not null) = ("__new_keep"."end_reason" is not null))
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_keep` SELECT
	`id`,
	`wallet_id`,
	`resource_id`,
	`idempotency_key`,
	`fingerprint`,
	`request_id`,
	`tags`,
	`extend_seconds`,
	`max_seconds`,
	`bought_seconds`,
	`operation_id`,
	`cpu_source`,
	`waiting`,
	`created_at`,
	`ended_at`,
	`end_reason`,
	`end_message`,
	`seal`
FROM `keep` ORDER BY rowid;--> statement-breakpoint
DROP TABLE `keep`;--> statement-breakpoint
ALTER TABLE `__new_keep` RENAME TO `keep`;--> statement-breakpoint
CREATE UNIQUE INDEX `keep_key` ON `keep` (`wallet_id`,`idempotency_key`);--> statement-breakpoint
CREATE UNIQUE INDEX `keep_active` ON `keep` (`resource_id`) WHERE "keep"."ended_at" is null;--> statement-breakpoint
CREATE UNIQUE INDEX `keep_operation` ON `keep` (`operation_id`) WHERE "keep"."operation_id" is not null;--> statement-breakpoint
CREATE INDEX `keep_resource` ON `keep` (`resource_id`,`id`);--> statement-breakpoint
CREATE TRIGGER keep_is_counted AFTER INSERT ON keep
BEGIN INSERT INTO tally VALUES ('keep', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
