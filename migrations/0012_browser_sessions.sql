CREATE TABLE `browser_session` (
	`id` text PRIMARY KEY NOT NULL,
	`kind` text NOT NULL,
	`account_id` text,
	`key_id` text,
	`token_hash` blob NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`last_used_at` integer NOT NULL,
	`seal` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`key_id`) REFERENCES `key`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "browser_session_kind" CHECK("browser_session"."kind" in ('link', 'operator', 'account')),
	CONSTRAINT "browser_session_account" CHECK(("browser_session"."kind" = 'account') = ("browser_session"."account_id" is not null))
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `browser_session_token` ON `browser_session` (`token_hash`);--> statement-breakpoint
CREATE INDEX `browser_session_expiry` ON `browser_session` (`expires_at`);