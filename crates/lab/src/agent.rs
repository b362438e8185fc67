//! The thread that keeps a host's namespace and works inside it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::{Error, Result, sys, tool};

type Job = Box<dyn FnOnce() + Send>;

/// Lives as long as its host. Processes started by it die with it, so nothing outlives a killed test.
pub(crate) struct Agent {
    host: String,
    jobs: Sender<Job>,
}

impl Agent {
    /// Makes a namespace and the thread inside it. Its connections are in a table of their own with so many
    /// places, or in the one of all namespaces that have none.
    pub(crate) fn start(host: &str, forwarding: bool, table: Option<u32>) -> Result<(Self, File)> {
        let (jobs, queue) = channel::<Job>();
        let (ready, is_ready) = channel();
        thread::Builder::new()
            .name(format!("lab-{host}"))
            .spawn(move || {
                let namespace = make_namespace(forwarding, table);
                let made = namespace.is_ok();
                if ready.send(namespace).is_ok() && made {
                    serve(&queue);
                }
            })
            .map_err(|source| Error::Spawn { what: "a host's thread".into(), source })?;
        let gone = || Error::HostGone { host: host.into() };
        let namespace = is_ready.recv().map_err(|_| gone())??;
        Ok((Self { host: host.into(), jobs }, namespace))
    }

    /// Runs a job inside the namespace and waits for its answer.
    pub(crate) fn call<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let gone = || Error::HostGone { host: self.host.clone() };
        let (reply, answer) = channel();
        let job = Box::new(move || drop(reply.send(job())));
        self.jobs.send(job).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

fn serve(queue: &Receiver<Job>) {
    queue.iter().for_each(|job| job());
}

fn make_namespace(forwarding: bool, table: Option<u32>) -> Result<File> {
    if let Some(places) = table {
        // Which table a namespace has says the one that it is made in; this one goes with its last thread.
        sys::new_network_namespace().map_err(Error::Namespace)?;
        wish("ipv4/tcp_child_ehash_entries", &places.to_string());
    }
    sys::new_network_namespace().map_err(Error::Namespace)?;
    let namespace = sys::current_network_namespace().map_err(Error::Namespace)?;
    configure_kernel(forwarding)?;
    tool::ip("link set lo up\n")?;
    Ok(namespace)
}

/// Makes a new namespace behave the same everywhere, and quietly.
fn configure_kernel(forwarding: bool) -> Result<()> {
    // Settings that some kernels lack are tried only: what they switch off is then absent as well.
    let wishes = [
        // Hosts with several links answer on each of them, whatever the route back.
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        // IPv6 addresses are usable at once, and only those a test gives.
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
        ("ipv6/conf/default/disable_ipv6", "0"),
        // A connection does not inherit what an earlier one measured.
        ("ipv4/tcp_no_metrics_save", "1"),
        // Tests without root may ping.
        ("ipv4/ping_group_range", "0 0"),
    ];
    wishes.into_iter().for_each(|(name, value)| wish(name, value));
    let forward = if forwarding { "1" } else { "0" };
    set_sysctl("ipv4/ip_forward", forward)?;
    if forwarding {
        set_sysctl("ipv6/conf/all/forwarding", "1")?;
    }
    Ok(())
}

/// Changes it as well, where the kernel has it.
fn wish(name: &str, value: &str) {
    if let Err(error) = set_sysctl(name, value) {
        tracing::debug!(%error, "kernel setting left as it is");
    }
}

/// Changes a kernel setting of the calling thread's network namespace.
pub(crate) fn set_sysctl(name: &str, value: &str) -> Result<()> {
    let path = PathBuf::from("/proc/sys/net").join(name);
    std::fs::write(&path, value).map_err(|source| Error::Sysctl { path, source })
}
