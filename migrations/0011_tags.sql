ALTER TABLE `operation` ADD `tags` text;--> statement-breakpoint
CREATE INDEX `operation_charged` ON `operation` (`settled_at`,`id`) WHERE "operation"."outcome" = 'charged';