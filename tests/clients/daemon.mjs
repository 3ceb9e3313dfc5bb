// The daemon as a process on a free port. DAEMON names the command, by default `ssd-run`.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export class Daemon {
  // Starts it in SSD mode; `logged("ready")` waits until it answers.
  constructor(...options) {
    const fixed = ["--mode", "ssd", "--set", "server.port=0", "--set", "log.format=json"];
    const command = process.env.DAEMON ?? "ssd-run";
    this.process = spawn(command, [...fixed, ...options], { stdio: ["ignore", "ignore", "pipe"] });
    this.log = createInterface({ input: this.process.stderr })[Symbol.asyncIterator]();
  }

  // The next line of the log that says `event`.
  async logged(event) {
    for (;;) {
      const { value, done } = await this.log.next();
      if (done) throw new Error(`the daemon ended before it logged "${event}"`);
      const entry = JSON.parse(value);
      if (entry.event === event) return entry;
    }
  }

  // Ends it as a supervisor would; the exit status.
  async stop() {
    const exit = once(this.process, "exit");
    this.process.kill("SIGTERM");
    return (await exit)[0];
  }
}
