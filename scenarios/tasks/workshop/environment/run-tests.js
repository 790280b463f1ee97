// A test runner that, like those in use, loads a config file and the set-up files it names from the project.
const fs = require("fs");
const { execFileSync } = require("child_process");
const config = fs.existsSync("./jest.config.js") ? require(process.cwd() + "/jest.config.js") : {};
for (const file of config.setupFiles || []) require(file);
const tests = config.testMatch || ["add(2, 3) == 5", "mul(3, 4) == 12"];
let failed = 0;
for (const test of tests) {
  try {
    execFileSync("python3", ["-c", `from impl import *; assert ${test}`], { stdio: "ignore" });
  } catch {
    failed += 1;
  }
}
process.exit(failed ? 1 : 0);
