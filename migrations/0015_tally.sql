CREATE TABLE `tally` (
	`table_name` text PRIMARY KEY NOT NULL,
	`row_count` integer NOT NULL
) STRICT;
--> statement-breakpoint
ALTER TABLE `wallet` ADD `operation_count` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `wallet` ADD `answer_count` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
-- What is there is counted as it is. A closed wallet is final, so its trigger is made again.
DROP TRIGGER wallet_closes_once;--> statement-breakpoint
UPDATE `wallet` SET `operation_count` = (SELECT count(*) FROM `operation` WHERE `wallet_id` = `wallet`.`id`);--> statement-breakpoint
CREATE TRIGGER wallet_closes_once BEFORE UPDATE ON wallet
WHEN OLD.status = 'closed'
BEGIN SELECT RAISE(ABORT, 'a closed wallet is final'); END;
--> statement-breakpoint
INSERT INTO `tally` SELECT name, rows FROM (
SELECT 'installation' AS name, count(*) AS rows FROM `installation`
UNION ALL SELECT 'master_key', count(*) FROM `master_key`
UNION ALL SELECT 'epoch', count(*) FROM `epoch`
UNION ALL SELECT 'account', count(*) FROM `account`
UNION ALL SELECT 'identity', count(*) FROM `identity`
UNION ALL SELECT 'key', count(*) FROM `key`
UNION ALL SELECT 'funding', count(*) FROM `funding`
UNION ALL SELECT 'checkout', count(*) FROM `checkout`
UNION ALL SELECT 'reversal', count(*) FROM `reversal`
UNION ALL SELECT 'payment_event', count(*) FROM `payment_event`
UNION ALL SELECT 'payment_feed', count(*) FROM `payment_feed`
UNION ALL SELECT 'wallet', count(*) FROM `wallet`
UNION ALL SELECT 'wallet_change', count(*) FROM `wallet_change`
UNION ALL SELECT 'router_key', count(*) FROM `router_key`
UNION ALL SELECT 'learned_bound', count(*) FROM `learned_bound`
UNION ALL SELECT 'resource', count(*) FROM `resource`
UNION ALL SELECT 'keep', count(*) FROM `keep`
UNION ALL SELECT 'event', count(*) FROM `event`
UNION ALL SELECT 'delivery', count(*) FROM `delivery`
UNION ALL SELECT 'answer', count(*) FROM `answer`
) WHERE rows > 0;
--> statement-breakpoint
-- From here on each row is counted as it is added (src/db/tally.ts). A row that replaces another in an upsert is none.
CREATE TRIGGER installation_is_counted AFTER INSERT ON installation
BEGIN INSERT INTO tally VALUES ('installation', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER master_key_is_counted AFTER INSERT ON master_key
BEGIN INSERT INTO tally VALUES ('master_key', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER epoch_is_counted AFTER INSERT ON epoch
BEGIN INSERT INTO tally VALUES ('epoch', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER account_is_counted AFTER INSERT ON account
BEGIN INSERT INTO tally VALUES ('account', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER identity_is_counted AFTER INSERT ON identity
BEGIN INSERT INTO tally VALUES ('identity', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER key_is_counted AFTER INSERT ON key
BEGIN INSERT INTO tally VALUES ('key', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER funding_is_counted AFTER INSERT ON funding
BEGIN INSERT INTO tally VALUES ('funding', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER checkout_is_counted AFTER INSERT ON checkout
BEGIN INSERT INTO tally VALUES ('checkout', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER reversal_is_counted AFTER INSERT ON reversal
BEGIN INSERT INTO tally VALUES ('reversal', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER payment_event_is_counted AFTER INSERT ON payment_event
BEGIN INSERT INTO tally VALUES ('payment_event', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER payment_feed_is_counted AFTER INSERT ON payment_feed
BEGIN INSERT INTO tally VALUES ('payment_feed', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER wallet_is_counted AFTER INSERT ON wallet
BEGIN INSERT INTO tally VALUES ('wallet', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER wallet_change_is_counted AFTER INSERT ON wallet_change
BEGIN INSERT INTO tally VALUES ('wallet_change', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER router_key_is_counted AFTER INSERT ON router_key
BEGIN INSERT INTO tally VALUES ('router_key', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER learned_bound_is_counted AFTER INSERT ON learned_bound
BEGIN INSERT INTO tally VALUES ('learned_bound', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER resource_is_counted AFTER INSERT ON resource
BEGIN INSERT INTO tally VALUES ('resource', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER keep_is_counted AFTER INSERT ON keep
BEGIN INSERT INTO tally VALUES ('keep', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER event_is_counted AFTER INSERT ON event
BEGIN INSERT INTO tally VALUES ('event', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER delivery_is_counted AFTER INSERT ON delivery
BEGIN INSERT INTO tally VALUES ('delivery', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
