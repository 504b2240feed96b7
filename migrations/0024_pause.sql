-- A lease that is paused: its own statuses, since when, and what it has left.
CREATE TABLE `__new_resource` (
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
	`questioned_at` integer,
	`engine` text,
	`unreachable_since` integer,
	`egress_allow` text,
	`paused_at` integer,
	`seconds_left` integer,
	`seal` integer NOT NULL,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`operation_id`) REFERENCES `operation`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "resource_status" CHECK("__new_resource"."status" in ('provisioning', 'running', 'paused', 'stopping', 'stopped', 'failed', 'unknown', 'pausing', 'resuming')),
	CONSTRAINT "resource_ended" CHECK(("__new_resource"."ended_at" is not null) = ("__new_resource"."status" in ('stopped', 'failed'))),
	CONSTRAINT "resource_reason" CHECK(("__new_resource"."ended_at" is not null) = ("__new_resource"."end_reason" is not null)),
	CONSTRAINT "resource_ready" CHECK("__new_resource"."status" <> 'running' or ("__new_resource"."ready_at" is not null and "__new_resource"."ref" is not null)),
	CONSTRAINT "resource_paused" CHECK("__new_resource"."status" not in ('pausing', 'paused', 'resuming') or
        ("__new_resource"."ready_at" is not null and "__new_resource"."ref" is not null and "__new_resource"."paused_at" is not null and "__new_resource"."seconds_left" > 0)),
	CONSTRAINT "resource_charged" CHECK("__new_resource"."charged_nanos" >= 0),
	CONSTRAINT "resource_seconds" CHECK("__new_resource"."purchased_seconds" > 0)
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_resource` SELECT
	`id`,
	`wallet_id`,
	`operation_id`,
	`slot`,
	`backend`,
	`tag`,
	`ref`,
	`spec`,
	`status`,
	`price_hourly_nanos`,
	`charged_nanos`,
	`purchased_seconds`,
	`max_seconds`,
	`ends_by`,
	`created_at`,
	`ready_by`,
	`ready_at`,
	`expires_at`,
	`end_wanted`,
	`end_reason`,
	`ended_at`,
	`due_at`,
	`attempts`,
	`last_error`,
	`absent_count`,
	`absent_since`,
	`abandoned_reason`,
	`questioned_at`,
	`engine`,
	`unreachable_since`,
	`egress_allow`,
	NULL,
	NULL,
	`seal`
FROM `resource` ORDER BY rowid;--> statement-breakpoint
DROP TABLE `resource`;--> statement-breakpoint
ALTER TABLE `__new_resource` RENAME TO `resource`;--> statement-breakpoint
CREATE UNIQUE INDEX `resource_tag` ON `resource` (`tag`);--> statement-breakpoint
CREATE UNIQUE INDEX `resource_operation` ON `resource` (`operation_id`);--> statement-breakpoint
CREATE INDEX `resource_wallet` ON `resource` (`wallet_id`,`id`);--> statement-breakpoint
CREATE INDEX `resource_live` ON `resource` (`due_at`) WHERE "resource"."ended_at" is null;--> statement-breakpoint
CREATE INDEX `resource_live_wallet` ON `resource` (`wallet_id`) WHERE "resource"."ended_at" is null;--> statement-breakpoint
CREATE TRIGGER resource_is_never_deleted BEFORE DELETE ON resource
BEGIN SELECT RAISE(ABORT, 'resources are kept'); END;
--> statement-breakpoint
CREATE TRIGGER resource_ends_once BEFORE UPDATE ON resource
WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an ended resource is final'); END;
--> statement-breakpoint
CREATE TRIGGER resource_is_counted AFTER INSERT ON resource
BEGIN INSERT INTO tally VALUES ('resource', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
