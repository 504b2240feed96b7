// The thread that writes: it owns the writing connection (docs/decisions/0002). A bundle of its own in the executable.
import { parentPort, workerData } from 'node:worker_threads';
import { collectWhenIdle } from '../base/idle-memory.ts';
import { serveWrites, type WorkerSettings } from '../ledger/writer-worker.ts';
// Every module that defines writes: the thread knows no others. They must be as light as the thread.
import '../access/writes.ts';
import '../chat/terms.ts';
import '../lease/candidates.ts';
import '../lease/create.ts';
import '../lease/extend.ts';
import '../lease/extension.ts';
import '../lease/pause.ts';
import '../lease/report-only.ts';
import '../lease/snapshot.ts';
import '../lease/step.ts';
import '../ledger/account.ts';
import '../ledger/checkout.ts';
import '../ledger/installation.ts';
import '../ledger/keep.ts';
import '../ledger/learned-bound.ts';
import '../ledger/master-keys.ts';
import '../ledger/notices.ts';
import '../ledger/open-wallet.ts';
import '../ledger/operation.ts';
import '../ledger/outbox.ts';
import '../ledger/payment-events.ts';
import '../ledger/refill.ts';
import '../ledger/resource.ts';
import '../ledger/reversal.ts';
import '../ledger/sandbox.ts';
import '../ledger/snapshot.ts';
import '../ledger/wallet-change.ts';
import '../recovery/writes.ts';
import '../spend/writes.ts';
import '../wallet/close.ts';

collectWhenIdle();
if (parentPort) serveWrites(parentPort, workerData as WorkerSettings);
