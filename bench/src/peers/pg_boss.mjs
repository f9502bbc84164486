// No-op jobs of pg-boss: prints `ready` when they are queued, works when a line comes, prints `done` when each has run.
// Batches are fetched and completed one after the other: its own workers would pause between any two fetches.
import { createInterface } from "node:readline";
import PgBoss from "pg-boss";

const jobs = Number(process.env.JOBS);
const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, supervise: false, schedule: false });
boss.on("error", console.error);
await boss.start();
await boss.createQueue("noop");
for (let first = 0; first < jobs; first += 1000) {
  const length = Math.min(1000, jobs - first);
  await boss.insert(Array.from({ length }, () => ({ name: "noop" })));
}

const stdin = createInterface({ input: process.stdin });
console.log("ready");
await new Promise((go) => stdin.once("line", go));
stdin.once("close", () => process.exit());

async function work() {
  for (;;) {
    const batch = await boss.fetch("noop", { batchSize: 500 });
    if (batch.length === 0) return;
    await boss.complete("noop", batch.map((job) => job.id));
  }
}
await Promise.all([work(), work(), work(), work()]);
console.log("done");
