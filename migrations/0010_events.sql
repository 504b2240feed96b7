CREATE TABLE `delivery` (
	`event_seq` integer NOT NULL,
	`receiver` text NOT NULL,
	`subject` text NOT NULL,
	`queued_at` integer NOT NULL,
	`delivered_at` integer,
	`gave_up_at` integer,
	`due_at` integer NOT NULL,
	`attempts` integer NOT NULL,
	`last_error` text,
	`seal` integer NOT NULL,
	PRIMARY KEY(`event_seq`, `receiver`),
	FOREIGN KEY (`event_seq`) REFERENCES `event`(`seq`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "delivery_ended" CHECK("delivery"."delivered_at" is null or "delivery"."gave_up_at" is null)
) STRICT;
--> statement-breakpoint
CREATE INDEX `delivery_waiting` ON `delivery` (`receiver`,`event_seq`) WHERE "delivery"."delivered_at" is null and "delivery"."gave_up_at" is null;--> statement-breakpoint
CREATE INDEX `delivery_order` ON `delivery` (`receiver`,`subject`,`event_seq`) WHERE "delivery"."delivered_at" is null and "delivery"."gave_up_at" is null;--> statement-breakpoint
CREATE TABLE `event` (
	`seq` integer PRIMARY KEY NOT NULL,
	`id` text NOT NULL,
	`type` text NOT NULL,
	`subject` text NOT NULL,
	`data` text NOT NULL,
	`created_at` integer NOT NULL,
	`seal` integer NOT NULL,
	CONSTRAINT "event_data" CHECK(json_valid("event"."data"))
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `event_id` ON `event` (`id`);--> statement-breakpoint
CREATE INDEX `event_subject` ON `event` (`subject`,`seq`);--> statement-breakpoint
CREATE INDEX `event_created` ON `event` (`created_at`);--> statement-breakpoint
ALTER TABLE `wallet` ADD `period_spent_nanos` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `wallet` ADD `next_threshold_nanos` integer;--> statement-breakpoint
-- The thresholds that an open wallet has not reached yet: 50, 80, 95 and 100 percent of its budget, rounded up to the nano.
UPDATE wallet SET next_threshold_nanos = (
	SELECT min(at) FROM (
		SELECT (budget_nanos / 100) * percent + ((budget_nanos % 100) * percent + 99) / 100 AS at
		FROM (SELECT 50 AS percent UNION ALL SELECT 80 UNION ALL SELECT 95 UNION ALL SELECT 100)
	) WHERE at > spent_nanos
) WHERE status <> 'closed';--> statement-breakpoint
CREATE TRIGGER event_is_never_changed BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'events are final'); END;
