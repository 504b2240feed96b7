CREATE TABLE `passkey` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`origin` text NOT NULL,
	`credential_id` blob NOT NULL,
	`public_key` blob NOT NULL,
	`use_count` integer NOT NULL,
	`subject` text,
	`rule` blob,
	`created_at` integer NOT NULL,
	`last_used_at` integer,
	`removed_at` integer,
	`seal` integer NOT NULL,
	CONSTRAINT "passkey_name" CHECK(length("passkey"."name") between 1 and 80),
	CONSTRAINT "passkey_uses" CHECK("passkey"."use_count" >= 0),
	CONSTRAINT "passkey_rule" CHECK(("passkey"."subject" is null) = ("passkey"."rule" is null))
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `passkey_credential` ON `passkey` (`credential_id`);--> statement-breakpoint
ALTER TABLE `browser_session` ADD `passkey_id` text REFERENCES passkey(id);--> statement-breakpoint
CREATE TRIGGER passkey_is_counted AFTER INSERT ON passkey
BEGIN INSERT INTO tally VALUES ('passkey', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
