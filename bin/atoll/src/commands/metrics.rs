//! `atoll metrics`: exports the numbers of `atoll status --json` to a monitoring system, in a format that
//! Prometheus reads.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use atoll_ipc::page::Stat;
use atoll_supervisor::{ServerState, ServerView, StackName, StatusReport};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Print what a stack counts in the format of OpenMetrics, which Prometheus reads, or serve it over HTTP.
#[derive(clap::Args)]
pub struct Metrics {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// Serve http://ADDRESS/metrics until interrupted, over the kernel's sockets, for everybody who can
    /// connect.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

impl Metrics {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let Some(address) = self.listen else {
            print!("{}", text(SupervisorClient::connect(&self.name)?.status()?)?);
            return Ok(ExitCode::SUCCESS);
        };
        let listener = TcpListener::bind(address).or_fail(format!("listening on {address}"))?;
        complain!("atoll: serving http://{}/metrics", listener.local_addr().or_fail("the own address")?);
        loop {
            // A client that has gone, or is too slow, does not affect the next one.
            if let Ok((client, _)) = listener.accept() {
                let _ = serve(client, || text(SupervisorClient::connect(&self.name)?.status()?));
            }
        }
    }
}

/// Answers one request. The answer is 503 if the stack is not up; the next request tries again.
fn serve(mut client: TcpStream, text: impl FnOnce() -> Result<String, Failure>) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = match target(&head(&mut client)?).as_deref() {
        Some("/metrics") => match text() {
            Ok(text) => ("200 OK", OPEN_METRICS, text),
            Err(failure) => ("503 Service Unavailable", PLAIN, format!("{failure}\n")),
        },
        Some(_) => ("404 Not Found", PLAIN, "there is /metrics here\n".into()),
        None => ("400 Bad Request", PLAIN, "this is for GET\n".into()),
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    client.write_all(body.as_bytes())
}

/// Reads from a client up to the empty line, or to the longest length of a request.
fn head(client: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() < HEAD_MAX && !head.windows(4).any(|four| four == b"\r\n\r\n") {
        match client.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
    }
    Ok(head)
}

/// Returns the path of a GET request without its query; `None` for anything else (RFC 9112 §3).
fn target(head: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(head.split(|octet| *octet == b'\r').next()?).into_owned();
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_get = method == "GET" && version.starts_with("HTTP/1.");
    is_get.then(|| target.split('?').next().unwrap_or_default().to_owned())
}

/// Returns a status in the format of OpenMetrics.
fn text(status: StatusReport) -> Result<String, Failure> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Status(status)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).or_fail("writing metrics")?;
    Ok(text)
}

#[derive(Debug)]
struct Status(StatusReport);

/// A server, and the labels that distinguish its samples.
struct Server<'a> {
    labels: Labels,
    view: ServerView<'a>,
}

type Labels = Vec<(&'static str, String)>;

impl Status {
    fn servers(&self) -> Vec<Server<'_>> {
        let of =
            |view: ServerView<'_>| vec![("kind", view.kind.to_owned()), ("index", view.index.to_string())];
        self.0.servers().map(|view| Server { labels: self.labels(of(view)), view }).collect()
    }

    fn labels(&self, more: Labels) -> Labels {
        [("stack", self.0.stack.name.clone())].into_iter().chain(more).collect()
    }
}

/// Writes the samples of one metric.
struct Writer<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Writer<'_, '_> {
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Status {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(&mut encoder);
        let stack = &self.0.stack;
        let one = |value: f64| [(self.labels(Vec::new()), value)];
        let of_build =
            vec![("configuration", stack.configuration.clone()), ("version", stack.version.clone())];
        to.gauges("atoll_stack_info", "What the stack is", [(self.labels(of_build), 1.0)])?;
        to.gauges("atoll_stack_uptime_seconds", "How long it has been up", one(stack.uptime_s))?;
        to.gauges(
            "atoll_stack_processes",
            "Processes that replicas are in",
            one(stack.scaling.processes.into()),
        )?;
        to.gauges("atoll_stack_sessions", "Programs that use it", one(self.0.sessions.len() as f64))?;
        to.counters(
            "atoll_stack_takeovers",
            "Supervisors that another one has succeeded",
            one(stack.takeovers.into()),
        )?;
        to.counters("atoll_stack_sessions_opened", "Sessions opened", one(stack.sessions_opened as f64))?;
        to.counters(
            "atoll_stack_library_calls",
            "Socket calls of programs",
            one(stack.library_calls as f64),
        )?;
        let with_syscall = one(stack.library_calls_with_syscall as f64);
        to.counters(
            "atoll_stack_library_calls_with_syscall",
            "Those that needed a system call",
            with_syscall,
        )?;

        let servers = self.servers();
        let all = |value: &dyn Fn(&Server<'_>) -> f64| -> Vec<(Labels, f64)> {
            servers.iter().map(|server| (server.labels.clone(), value(server))).collect()
        };
        let serves = |server: &Server<'_>| f64::from(server.view.recovery.state == ServerState::Serving);
        to.gauges("atoll_server_serving", "1 if it serves, 0 while it is started again", all(&serves))?;
        to.gauges("atoll_server_epoch", "Its incarnation", all(&|server| server.view.epoch.into()))?;
        let cpu = servers.iter().filter_map(|it| Some((it.labels.clone(), it.view.cpu_ms? as f64 / 1000.0)));
        to.counters("atoll_server_cpu_seconds", "Processor time of its process", cpu)?;
        let crashes = all(&|server| server.view.recovery.crashes as f64);
        to.counters("atoll_server_crashes", "Ends of its processes that nobody asked for", crashes)?;
        let moves = all(&|server| server.view.recovery.moves as f64);
        to.counters("atoll_server_moves", "Times that it went on in another process", moves)?;
        let recoveries = servers.iter().flat_map(|server| {
            let times =
                server.view.recovery.last.map(|last| [("start", last.start_us), ("ready", last.ready_us)]);
            times.into_iter().flatten().map(|(phase, us)| {
                let labels = server.labels.iter().cloned().chain([("phase", phase.to_owned())]).collect();
                (labels, us as f64 / 1e6)
            })
        });
        let help = "The last recovery: until its next process was started, and from then until it served";
        to.gauges("atoll_server_last_recovery_seconds", help, recoveries)?;
        for stat in Stat::ALL {
            let samples = servers
                .iter()
                .filter_map(|it| Some((it.labels.clone(), *it.view.stats.get(stat.name())? as f64)));
            let (name, help) = (format!("atoll_{}", stat.name()), stat.name().replace('_', " "));
            if stat.is_gauge() {
                to.gauges(&name, &help, samples)?
            } else {
                to.counters(&name, &help, samples)?
            }
        }
        Ok(())
    }
}

/// How long a client may take for each step.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request, in bytes.
const HEAD_MAX: usize = 8192;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusReport {
        serde_json::from_value(serde_json::json!({
            "stack": {
                "name": "web", "pid": 1, "configuration": "TS1LS1CM1", "version": "1.2", "uptime_s": 2.5,
                "socket": "",
                "link": {"type": "none", "device": null, "netns": null, "address": null, "prefix": null,
                         "peer_address": null, "gateway": null, "mac": "", "mtu": 1500, "offload": false,
                         "steering": "software", "peer": null, "peer_present": null},
                "sessions_opened": 3, "library_calls": 4, "library_calls_with_syscall": 1,
            },
            "replicas": [{
                "index": 0, "pid": 2, "epoch": 2, "cpu": null, "cpu_ms": 1500, "flow_groups": 4096,
                "recovery": {"state": "starting", "crashes": 1,
                             "last": {"start_us": 1000, "ready_us": 2500, "total_us": 3500}},
                "stats": {"connections": 7, "segments_in": 8},
            }],
            "sessions": [],
        }))
        .expect("a status")
    }

    #[test]
    fn every_number_has_its_line() {
        let text = text(status()).unwrap();
        for line in [
            "# TYPE atoll_connections gauge",
            "atoll_connections{stack=\"web\",kind=\"replica\",index=\"0\"} 7.0",
            "# TYPE atoll_segments_in counter",
            "atoll_segments_in_total{stack=\"web\",kind=\"replica\",index=\"0\"} 8.0",
            "atoll_server_serving{stack=\"web\",kind=\"replica\",index=\"0\"} 0.0",
            "atoll_server_crashes_total{stack=\"web\",kind=\"replica\",index=\"0\"} 1.0",
            "atoll_server_last_recovery_seconds{stack=\"web\",kind=\"replica\",index=\"0\",phase=\"ready\"} \
             0.0025",
            "atoll_server_cpu_seconds_total{stack=\"web\",kind=\"replica\",index=\"0\"} 1.5",
            "atoll_stack_info{stack=\"web\",configuration=\"TS1LS1CM1\",version=\"1.2\"} 1.0",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        let mut names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "no metric twice");
    }

    #[test]
    fn only_what_asks_for_it_gets_it() {
        for (head, path) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[..], Some("/metrics")),
            (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", Some("/metrics")),
            (b"GET / HTTP/1.1\r\n\r\n", Some("/")),
            (b"POST /metrics HTTP/1.1\r\n\r\n", None),
            (b"GET /metrics\r\n\r\n", None),
            (b"\xff\xfe\x00", None),
            (b"", None),
        ] {
            assert_eq!(target(head).as_deref(), path);
        }
        // This request never ends.
        assert!(head(&mut io::repeat(b'a')).unwrap().len() < HEAD_MAX + 1024);
    }
}
