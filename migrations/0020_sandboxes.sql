CREATE TABLE `sandbox` (
	`resource_id` text PRIMARY KEY NOT NULL,
	`template` text NOT NULL,
	`metadata` text NOT NULL,
	`environment` blob,
	`seconds` integer NOT NULL,
	`ends_at` integer,
	`delivered_at` integer,
	`seal` integer NOT NULL,
	FOREIGN KEY (`resource_id`) REFERENCES `resource`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "sandbox_seconds" CHECK("sandbox"."seconds" > 0)
) STRICT;
--> statement-breakpoint
CREATE TRIGGER sandbox_is_counted AFTER INSERT ON sandbox
BEGIN INSERT INTO tally VALUES ('sandbox', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
