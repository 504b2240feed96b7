-- Snapshots of leases, and the kind of operations that pay for them.
CREATE TABLE `snapshot` (
	`id` text PRIMARY KEY NOT NULL,
	`wallet_id` text NOT NULL,
	`resource_id` text NOT NULL,
	`operation_id` text NOT NULL,
	`slot` text NOT NULL,
	`backend` text NOT NULL,
	`engine` text,
	`tag` text NOT NULL,
	`status` text NOT NULL,
	`limit_gib` integer NOT NULL,
	`size_hundredths` integer,
	`price_nanos` integer NOT NULL,
	`days` integer NOT NULL,
	`paid_until` integer,
	`created_at` integer NOT NULL,
	`end_wanted` text,
	`end_reason` text,
	`ended_at` integer,
	`due_at` integer NOT NULL,
	`attempts` integer NOT NULL,
	`last_error` text,
	`seal` integer NOT NULL,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`resource_id`) REFERENCES `resource`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`operation_id`) REFERENCES `operation`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "snapshot_status" CHECK("snapshot"."status" in ('taking', 'ready', 'deleting', 'deleted', 'failed')),
	CONSTRAINT "snapshot_ended" CHECK(("snapshot"."ended_at" is not null) = ("snapshot"."status" in ('deleted', 'failed'))),
	CONSTRAINT "snapshot_reason" CHECK(("snapshot"."ended_at" is not null) = ("snapshot"."end_reason" is not null)),
	CONSTRAINT "snapshot_ready" CHECK("snapshot"."status" <> 'ready' or ("snapshot"."size_hundredths" is not null and "snapshot"."paid_until" is not null)),
	CONSTRAINT "snapshot_deleting" CHECK("snapshot"."status" <> 'deleting' or "snapshot"."end_wanted" is not null),
	CONSTRAINT "snapshot_size" CHECK("snapshot"."size_hundredths" is null or "snapshot"."size_hundredths" between 0 and "snapshot"."limit_gib" * 100),
	CONSTRAINT "snapshot_days" CHECK("snapshot"."days" >= 0)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `snapshot_tag` ON `snapshot` (`tag`);--> statement-breakpoint
CREATE UNIQUE INDEX `snapshot_operation` ON `snapshot` (`operation_id`);--> statement-breakpoint
CREATE INDEX `snapshot_wallet` ON `snapshot` (`wallet_id`,`id`);--> statement-breakpoint
CREATE INDEX `snapshot_live` ON `snapshot` (`due_at`) WHERE "snapshot"."ended_at" is null;--> statement-breakpoint
CREATE INDEX `snapshot_live_wallet` ON `snapshot` (`wallet_id`) WHERE "snapshot"."ended_at" is null;--> statement-breakpoint
CREATE TABLE `__new_operation` (
	`number` integer PRIMARY KEY NOT NULL,
	`id` text NOT NULL,
	`wallet_id` text NOT NULL,
	`kind` text NOT NULL,
	`route` text NOT NULL,
	`idempotency_key` text NOT NULL,
	`fingerprint` blob NOT NULL,
	`request_id` text NOT NULL,
	`state` text NOT NULL,
	`outcome` text,
	`settled_by` text,
	`hold_nanos` integer NOT NULL,
	`charge_nanos` integer,
	`price` text NOT NULL,
	`usage` text,
	`subject` text NOT NULL,
	`resource_id` text,
	`target_at` integer,
	`reason` text,
	`created_at` integer NOT NULL,
	`uncertain_at` integer,
	`settled_at` integer,
	`answered_at` integer,
	`tags` text,
	`freed` integer,
	`key_digest` blob NOT NULL,
	`hold_entry` integer,
	`settle_entry` integer,
	`seal` integer NOT NULL,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "operation_kind" CHECK("__new_operation"."kind" in ('chat', 'compute_create', 'compute_extend', 'snapshot')),
	CONSTRAINT "operation_state" CHECK("__new_operation"."state" in ('reserved', 'uncertain', 'settled')),
	CONSTRAINT "operation_outcome" CHECK("__new_operation"."outcome" is null or "__new_operation"."outcome" in ('charged', 'released')),
	CONSTRAINT "operation_settled" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."outcome" is not null)),
	CONSTRAINT "operation_charge" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."charge_nanos" is not null)),
	CONSTRAINT "operation_decided" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."settled_by" is not null)),
	CONSTRAINT "operation_time" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."settled_at" is not null)),
	CONSTRAINT "operation_doubt" CHECK("__new_operation"."state" <> 'uncertain' or "__new_operation"."uncertain_at" is not null),
	CONSTRAINT "operation_hold" CHECK("__new_operation"."hold_nanos" >= 0),
	CONSTRAINT "operation_bound" CHECK("__new_operation"."charge_nanos" is null or "__new_operation"."charge_nanos" between 0 and "__new_operation"."hold_nanos"),
	CONSTRAINT "operation_released" CHECK("__new_operation"."outcome" <> 'released' or "__new_operation"."charge_nanos" = 0)
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_operation` SELECT
	`number`,
	`id`,
	`wallet_id`,
	`kind`,
	`route`,
	`idempotency_key`,
	`fingerprint`,
	`request_id`,
	`state`,
	`outcome`,
	`settled_by`,
	`hold_nanos`,
	`charge_nanos`,
	`price`,
	`usage`,
	`subject`,
	`resource_id`,
	`target_at`,
	`reason`,
	`created_at`,
	`uncertain_at`,
	`settled_at`,
	`answered_at`,
	`tags`,
	`freed`,
	`key_digest`,
	`hold_entry`,
	`settle_entry`,
	`seal`
FROM `operation` ORDER BY `number`;--> statement-breakpoint
DROP TABLE `operation`;--> statement-breakpoint
ALTER TABLE `__new_operation` RENAME TO `operation`;--> statement-breakpoint
CREATE UNIQUE INDEX `operation_id` ON `operation` (`id`);--> statement-breakpoint
CREATE UNIQUE INDEX `operation_idempotency` ON `operation` (`key_digest`) WHERE "operation"."freed" is null;--> statement-breakpoint
CREATE INDEX `operation_wallet` ON `operation` (number >> 8,`wallet_id`);--> statement-breakpoint
CREATE INDEX `operation_open` ON `operation` (`wallet_id`,`state`) WHERE "operation"."state" <> 'settled';--> statement-breakpoint
CREATE INDEX `operation_charged` ON `operation` (`settled_at`) WHERE "operation"."outcome" = 'charged';--> statement-breakpoint
CREATE INDEX `operation_uncertain` ON `operation` (`uncertain_at`) WHERE "operation"."state" = 'uncertain';--> statement-breakpoint
CREATE TRIGGER operation_is_never_deleted BEFORE DELETE ON operation
BEGIN SELECT RAISE(ABORT, 'operations are kept'); END;
--> statement-breakpoint
CREATE TRIGGER operation_settles_once BEFORE UPDATE ON operation
WHEN OLD.state = 'settled'
BEGIN SELECT RAISE(ABORT, 'a settled operation is final'); END;
--> statement-breakpoint
CREATE TRIGGER operation_frees_its_key BEFORE UPDATE OF outcome, answered_at, freed ON operation
WHEN NEW.freed IS NOT iif(NEW.outcome IS 'released' AND NEW.answered_at IS NULL, 1, NULL)
BEGIN SELECT RAISE(ABORT, 'a key is free if its operation was released and never answered'); END;
--> statement-breakpoint
ALTER TABLE `resource` ADD `snapshot_id` text REFERENCES snapshot(id);--> statement-breakpoint
CREATE INDEX `resource_live_snapshot` ON `resource` (`snapshot_id`) WHERE "resource"."snapshot_id" is not null and "resource"."ended_at" is null;--> statement-breakpoint
CREATE TRIGGER snapshot_is_never_deleted BEFORE DELETE ON snapshot
BEGIN SELECT RAISE(ABORT, 'snapshots are kept'); END;
--> statement-breakpoint
CREATE TRIGGER snapshot_ends_once BEFORE UPDATE ON snapshot
WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'an ended snapshot is final'); END;
--> statement-breakpoint
CREATE TRIGGER snapshot_is_counted AFTER INSERT ON snapshot
BEGIN INSERT INTO tally VALUES ('snapshot', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
