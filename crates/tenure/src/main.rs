//! The `tenure` binary: one program for the server, the command line and the processes above tasks.

mod agent;
mod cli;
mod data;
mod discovery;
mod elect;
mod epochs;
mod node;
mod node_args;
mod replica;
mod server;
mod settings;
mod up;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // First of all: a supervisor or keeper must be up before anything else is set up.
    if let Some(exit_code) = tenure_agent::run_hidden_subcommand().or_else(elect::run_hidden_subcommand) {
        return exit_code;
    }
    let cli = cli::Cli::parse();
    match cli.command {
        cli::Command::Up(args) => up::run(args),
        cli::Command::Server(settings) => server::run(&settings.0),
        cli::Command::Agent(args) => agent::run(args, &cli.globals),
        cli::Command::Elect(args) => elect::run(&args, &cli.globals),
        command => cli::run(command, cli.globals),
    }
}
