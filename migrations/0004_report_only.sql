-- A CHECK cannot be added to a table that is there: it is made anew, with its one row. Nothing refers to it.
CREATE TABLE `__new_installation` (
	`id` integer PRIMARY KEY NOT NULL,
	`installation_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`default_account_id` text,
	`master_key_id` text NOT NULL,
	`frozen_at` integer,
	`report_only_since` integer,
	`report_only_reason` text,
	`machine_hash` blob,
	CONSTRAINT "installation_one" CHECK("id" = 1),
	CONSTRAINT "installation_report_only" CHECK(("report_only_since" is null) = ("report_only_reason" is null))
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_installation`("id", "installation_id", "created_at", "default_account_id", "master_key_id", "frozen_at") SELECT "id", "installation_id", "created_at", "default_account_id", "master_key_id", "frozen_at" FROM `installation`;--> statement-breakpoint
DROP TABLE `installation`;--> statement-breakpoint
ALTER TABLE `__new_installation` RENAME TO `installation`;--> statement-breakpoint
ALTER TABLE `resource` ADD `questioned_at` integer;
