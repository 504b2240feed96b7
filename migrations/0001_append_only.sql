-- What happened to money is never changed and never removed: the journal by no statement at all, and of the rows that
-- explain it none is ever deleted. ABORT, not ROLLBACK: a refused closure undoes only itself (docs/decisions/0002).
CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
--> statement-breakpoint
CREATE TRIGGER entry_is_never_deleted BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
--> statement-breakpoint
CREATE TRIGGER entry_is_contiguous BEFORE INSERT ON entry
WHEN NEW.seq <> coalesce((SELECT max(seq) FROM entry), 0) + 1
BEGIN SELECT RAISE(ABORT, 'the journal has no gaps'); END;
--> statement-breakpoint
CREATE TRIGGER operation_is_never_deleted BEFORE DELETE ON operation
BEGIN SELECT RAISE(ABORT, 'operations are kept'); END;
--> statement-breakpoint
CREATE TRIGGER operation_settles_once BEFORE UPDATE ON operation
WHEN OLD.state = 'settled'
BEGIN SELECT RAISE(ABORT, 'a settled operation is final'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_is_never_deleted BEFORE DELETE ON wallet
BEGIN SELECT RAISE(ABORT, 'wallets are kept'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_closes_once BEFORE UPDATE ON wallet
WHEN OLD.status = 'closed'
BEGIN SELECT RAISE(ABORT, 'a closed wallet is final'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_budget_is_fixed BEFORE UPDATE OF budget_nanos, account_id ON wallet
BEGIN SELECT RAISE(ABORT, 'a budget is fixed when the wallet is made'); END;
--> statement-breakpoint
CREATE TRIGGER funding_is_never_changed BEFORE UPDATE ON funding
BEGIN SELECT RAISE(ABORT, 'fundings are final'); END;
--> statement-breakpoint
CREATE TRIGGER funding_is_never_deleted BEFORE DELETE ON funding
BEGIN SELECT RAISE(ABORT, 'fundings are kept'); END;
--> statement-breakpoint
CREATE TRIGGER account_is_never_deleted BEFORE DELETE ON account
BEGIN SELECT RAISE(ABORT, 'accounts are kept'); END;
