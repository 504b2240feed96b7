import { parentPort, workerData } from 'node:worker_threads';
import { lowerPriority } from '../files/worker.ts';
import { type AuditOrder, examinePart } from './audit.ts';

lowerPriority(); // The main thread takes twice as long for the books as either part: on two processors it must not wait for one.
const { file, part } = workerData as AuditOrder;
parentPort?.postMessage(examinePart(file, part));
