//! The atoll command: one binary for the command line, the supervisor and the servers.
#![forbid(unsafe_code)]
// The print macros of the standard library panic if no process reads; `event!` and `complain!` do not.
#![cfg_attr(not(test), warn(clippy::print_stderr))]

#[macro_use]
mod log;

mod address;
mod client;
mod clock;
mod commands;
mod failure;
mod guardian;
mod host;
mod ip_server;
mod link;
mod link_server;
mod manager_server;
mod mesh;
mod notes;
mod privileges;
mod replica;
mod ringing;
mod rows;
mod runtime;
mod scheduling;
mod self_check;
mod server;
mod setup;
mod siblings;
mod supervise;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A TCP/IP stack in processes of its own, for programs that need not know.
///
/// `atoll up` starts a stack, `atoll run` runs a program on it. Sockets of the program then belong to the
/// stack: streams and datagrams of IPv4 and IPv6; everything else stays with the kernel.
#[derive(Parser)]
#[command(name = "atoll", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(commands::up::Up),
    Down(commands::down::Down),
    Run(commands::run::Run),
    Status(commands::status::Status),
    Ss(commands::ss::Ss),
    Metrics(commands::metrics::Metrics),
    Balance(commands::balance::Balance),
    Scale(commands::scale::Scale),
    Move(commands::relocate::Move),
    Chaos(commands::chaos::Chaos),
    Config(commands::config::Config),
    Upgrade(commands::upgrade::Upgrade),
    Paper(commands::paper::Paper),
    SelfCheck(self_check::Command),
    /// Print the version of the program and of the layouts it shares with its library.
    Version,
    /// Run the supervisor of a stack in the background.
    #[command(hide = true)]
    Supervise(commands::up::Supervise),
    /// Serve recorded connections again.
    #[command(hide = true)]
    Replay(commands::paper::Replayed),
    /// Run replicas of a stack in one process.
    #[command(hide = true)]
    Replicas(setup::SetupArgs<setup::HostSetup>),
    /// Run a link server of a stack in a process of its own.
    #[command(hide = true)]
    LinkServer(setup::SetupArgs<setup::LinkServerSetup>),
    /// Run an IP server of a stack in a process of its own.
    #[command(hide = true)]
    IpServer(setup::SetupArgs<setup::IpServerSetup>),
    /// Run a connection manager of a stack in a process of its own.
    #[command(hide = true)]
    ConnectionManager(setup::SetupArgs<setup::ManagerSetup>),
    /// Make the device of a stack.
    #[command(hide = true)]
    MakeDevice(supervise::MakeDevice),
}

fn main() -> ExitCode {
    // The arguments are another program's then.
    if let Err(failure) = commands::run::check_hosting() {
        complain!("atoll: {failure}");
        return ExitCode::from(126);
    }
    // The directory depends on the user, so it is found before anything changes that.
    runtime::directory();
    let result = match Cli::parse().command {
        Command::Up(up) => up.run(),
        Command::Down(down) => down.run(),
        Command::Run(run) => run.run(),
        Command::Status(status) => printing(|| status.run()),
        Command::Ss(ss) => printing(|| ss.run()),
        Command::Metrics(metrics) => printing(|| metrics.run()),
        Command::Balance(balance) => printing(|| balance.run()),
        Command::Scale(scale) => printing(|| scale.run()),
        Command::Move(relocate) => printing(|| relocate.run()),
        Command::Chaos(chaos) => chaos.run(),
        Command::Paper(paper) => printing(|| paper.run()),
        Command::Replay(replay) => replay.run(),
        Command::Config(config) => printing(|| config.run()),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::MakeDevice(make) => make.run(),
        Command::SelfCheck(check) => check.run(),
        Command::Version => {
            println!("atoll {} (layout {})", env!("CARGO_PKG_VERSION"), atoll_ipc::LAYOUT_VERSION);
            Ok(ExitCode::SUCCESS)
        }
        Command::Supervise(supervise) => return supervise.run(),
        Command::Replicas(args) => return run_server(&args.setup, host::main),
        Command::LinkServer(args) => return run_server(&args.setup, link_server::main),
        Command::IpServer(args) => return run_server(&args.setup, ip_server::main),
        Command::ConnectionManager(args) => return run_server(&args.setup, manager_server::main),
    };
    result.unwrap_or_else(|failure| {
        complain!("atoll: {failure}");
        ExitCode::FAILURE
    })
}

/// Runs a command that only prints, and lets it die of SIGPIPE if its reader (`head`, say) goes away.
fn printing(
    command: impl FnOnce() -> Result<ExitCode, failure::Failure>,
) -> Result<ExitCode, failure::Failure> {
    atoll_sys::signal::die_of_broken_pipes();
    command()
}

fn run_server<S: setup::Setup>(setup: &S, serve: impl FnOnce(&S) -> ExitCode) -> ExitCode {
    log::open_in_server();
    // A server of a guarded stack cancels this once the next supervisor would know it (`server.rs`).
    if atoll_sys::process::die_with_parent(setup.process().supervisor).is_err() {
        return ExitCode::FAILURE;
    }
    serve(setup)
}

const EXAMPLES: &str = "\
Examples:
  atoll run -- curl http://127.0.0.1/        on a stack of its own, without privilege
  sudo atoll up --daemon --replicas 2        a stack at 198.18.0.2; the kernel's end is 198.18.0.1
  sudo atoll run -- nginx                    on that stack: http://198.18.0.2/
  sudo atoll status                          what its replicas do
  sudo atoll down";
