CREATE TABLE `router_key` (
	`id` text PRIMARY KEY NOT NULL,
	`wallet_id` text NOT NULL,
	`master_key_id` text NOT NULL,
	`token_hash` blob NOT NULL,
	`last4` text NOT NULL,
	`options` text NOT NULL,
	`created_at` integer NOT NULL,
	`revoked_at` integer,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`master_key_id`) REFERENCES `master_key`(`id`) ON UPDATE no action ON DELETE no action
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `router_key_token` ON `router_key` (`token_hash`);--> statement-breakpoint
CREATE UNIQUE INDEX `router_key_options` ON `router_key` (`wallet_id`,`options`) WHERE "router_key"."revoked_at" is null;