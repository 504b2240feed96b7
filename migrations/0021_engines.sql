ALTER TABLE `installation` ADD `host` text;--> statement-breakpoint
ALTER TABLE `installation` ADD `file_mark` text;--> statement-breakpoint
ALTER TABLE `installation` ADD `moved_from` text;--> statement-breakpoint
ALTER TABLE `installation` ADD `moved_at` integer;--> statement-breakpoint
ALTER TABLE `installation` ADD `moved_written_at` integer;--> statement-breakpoint
ALTER TABLE `installation` ADD `trusted_at` integer;--> statement-breakpoint
ALTER TABLE `resource` ADD `engine` text;--> statement-breakpoint
ALTER TABLE `resource` ADD `unreachable_since` integer;