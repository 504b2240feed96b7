CREATE TABLE `keep` (
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
	CONSTRAINT "keep_step" CHECK("keep"."extend_seconds" > 0),
	CONSTRAINT "keep_bought" CHECK("keep"."bought_seconds" >= 0 and "keep"."bought_seconds" <= "keep"."max_seconds"),
	CONSTRAINT "keep_ended" CHECK(("keep"."ended_at" is not null) = ("keep"."end_reason" is not null))
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `keep_key` ON `keep` (`wallet_id`,`idempotency_key`);--> statement-breakpoint
CREATE UNIQUE INDEX `keep_active` ON `keep` (`resource_id`) WHERE "keep"."ended_at" is null;--> statement-breakpoint
CREATE UNIQUE INDEX `keep_operation` ON `keep` (`operation_id`) WHERE "keep"."operation_id" is not null;--> statement-breakpoint
CREATE INDEX `keep_resource` ON `keep` (`resource_id`,`id`);