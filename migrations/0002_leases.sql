CREATE TABLE `resource` (
	`id` text PRIMARY KEY NOT NULL,
	`wallet_id` text NOT NULL,
	`operation_id` text NOT NULL,
	`slot` text NOT NULL,
	`backend` text NOT NULL,
	`tag` text NOT NULL,
	`ref` text,
	`spec` text NOT NULL,
	`status` text NOT NULL,
	`price_hourly_nanos` integer NOT NULL,
	`charged_nanos` integer NOT NULL,
	`purchased_seconds` integer NOT NULL,
	`max_seconds` integer NOT NULL,
	`ends_by` integer,
	`created_at` integer NOT NULL,
	`ready_by` integer NOT NULL,
	`ready_at` integer,
	`expires_at` integer NOT NULL,
	`end_wanted` text,
	`end_reason` text,
	`ended_at` integer,
	`due_at` integer NOT NULL,
	`attempts` integer NOT NULL,
	`last_error` text,
	`absent_count` integer NOT NULL,
	`absent_since` integer,
	`abandoned_reason` text,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`operation_id`) REFERENCES `operation`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "resource_status" CHECK("resource"."status" in ('provisioning', 'running', 'stopping', 'stopped', 'failed', 'unknown')),
	CONSTRAINT "resource_ended" CHECK(("resource"."ended_at" is not null) = ("resource"."status" in ('stopped', 'failed'))),
	CONSTRAINT "resource_reason" CHECK(("resource"."ended_at" is not null) = ("resource"."end_reason" is not null)),
	CONSTRAINT "resource_ready" CHECK("resource"."status" <> 'running' or ("resource"."ready_at" is not null and "resource"."ref" is not null)),
	CONSTRAINT "resource_charged" CHECK("resource"."charged_nanos" >= 0),
	CONSTRAINT "resource_seconds" CHECK("resource"."purchased_seconds" > 0)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `resource_tag` ON `resource` (`tag`);--> statement-breakpoint
CREATE UNIQUE INDEX `resource_operation` ON `resource` (`operation_id`);--> statement-breakpoint
CREATE INDEX `resource_wallet` ON `resource` (`wallet_id`,`id`);--> statement-breakpoint
CREATE INDEX `resource_live` ON `resource` (`due_at`) WHERE "resource"."ended_at" is null;--> statement-breakpoint
CREATE INDEX `resource_live_wallet` ON `resource` (`wallet_id`) WHERE "resource"."ended_at" is null;--> statement-breakpoint
ALTER TABLE `operation` ADD `resource_id` text;--> statement-breakpoint
ALTER TABLE `operation` ADD `target_at` integer;--> statement-breakpoint
CREATE TRIGGER resource_is_never_deleted BEFORE DELETE ON resource
BEGIN SELECT RAISE(ABORT, 'resources are kept'); END;
--> statement-breakpoint
CREATE TRIGGER resource_ends_once BEFORE UPDATE ON resource
WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an ended resource is final'); END;
