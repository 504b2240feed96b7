-- What asks for open wallets walks past none that are closed: they are kept for ever.
CREATE INDEX `wallet_open` ON `wallet` (`account_id`,`id`) WHERE "wallet"."status" <> 'closed';--> statement-breakpoint
CREATE INDEX `wallet_open_child` ON `wallet` (`parent_id`,`id`) WHERE "wallet"."parent_id" is not null and "wallet"."status" <> 'closed';