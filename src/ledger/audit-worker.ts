import { parentPort, workerData } from 'node:worker_threads';
import { type AuditOrder, examinePart } from './audit.ts';

const { file, part } = workerData as AuditOrder;
parentPort?.postMessage(examinePart(file, part));
