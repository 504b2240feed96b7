-- A session also has the user of the identity provider that it is of. SQLite adds no condition to a table, so it is made again.
CREATE TABLE `new_browser_session` (
	`id` text PRIMARY KEY NOT NULL,
	`kind` text NOT NULL,
	`account_id` text,
	`key_id` text,
	`subject` text,
	`rule` blob,
	`token_hash` blob NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`last_used_at` integer NOT NULL,
	`seal` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`key_id`) REFERENCES `key`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "browser_session_kind" CHECK("kind" in ('link', 'operator', 'account')),
	CONSTRAINT "browser_session_account" CHECK(("kind" = 'account') = ("account_id" is not null)),
	CONSTRAINT "browser_session_rule" CHECK(("subject" is null) = ("rule" is null)),
	CONSTRAINT "browser_session_subject" CHECK("subject" is null or "kind" = 'operator')
) STRICT;
--> statement-breakpoint
INSERT INTO `new_browser_session` (`id`, `kind`, `account_id`, `key_id`, `token_hash`, `created_at`, `expires_at`, `last_used_at`, `seal`)
SELECT `id`, `kind`, `account_id`, `key_id`, `token_hash`, `created_at`, `expires_at`, `last_used_at`, `seal` FROM `browser_session`;--> statement-breakpoint
DROP TABLE `browser_session`;--> statement-breakpoint
ALTER TABLE `new_browser_session` RENAME TO `browser_session`;--> statement-breakpoint
CREATE UNIQUE INDEX `browser_session_token` ON `browser_session` (`token_hash`);--> statement-breakpoint
CREATE INDEX `browser_session_expiry` ON `browser_session` (`expires_at`);
