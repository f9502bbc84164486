// No-op jobs of graphile-worker: prints `ready` when they are queued, works when a line comes, prints `done` when each
// has run. Batched both ways, as its page on performance advises for many short jobs.
import { createInterface } from "node:readline";
import { Logger, WorkerPreset, makeWorkerUtils, run } from "graphile-worker";

const jobs = Number(process.env.JOBS);
const connectionString = process.env.DATABASE_URL;
const quiet = new Logger(() => () => {}); // otherwise it prints two lines for each job

const utils = await makeWorkerUtils({ connectionString, logger: quiet });
await utils.migrate();
for (let first = 0; first < jobs; first += 1000) {
  const length = Math.min(1000, jobs - first);
  await utils.addJobs(Array.from({ length }, () => ({ identifier: "noop", payload: {} })));
}
await utils.release();

const stdin = createInterface({ input: process.stdin });
console.log("ready");
await new Promise((go) => stdin.once("line", go));
stdin.once("close", () => process.exit());

let done = 0;
const noop = async () => {
  if (++done === jobs) console.log("done");
};
await run({
  preset: {
    extends: [WorkerPreset],
    worker: {
      connectionString,
      concurrentJobs: 24,
      maxPoolSize: 26,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      logger: quiet,
    },
  },
  taskList: { noop },
});
