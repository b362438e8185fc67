//! What an endpoint is made of, and how it follows the addresses of its host.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use whimbrel_base::{EndpointAddr, EndpointId, Name, SecretKey};

use crate::announce::Announcements;
use crate::carrier::Reach;
use crate::carrier::quic::QuicConfig;
use crate::config::Config;
use crate::error::{BindError, ConnectError, ResolveError};
use crate::half_open::HalfOpen;
use crate::listener::Listeners;
use crate::manager::PathPolicy;
use crate::monitor::{AddressMonitor, AddressSet, LocalAddress};
use crate::notices;
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::shared::Shared;
use crate::sockets::{BindPlan, Bound, Sockets};
use crate::tls::TlsIdentity;

/// How often all connections are counted.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Lost addresses that are remembered; only those lost a moment ago matter.
const MAX_LOST: usize = 256;
/// Between attempts to bind at a new address where the port is taken.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What all handles of an endpoint, its tasks and its connections share.
pub(crate) struct EndpointInner {
    pub(crate) id: EndpointId,
    pub(crate) key: SecretKey,
    pub(crate) tls: TlsIdentity,
    pub(crate) quic: Arc<QuicConfig>,
    pub(crate) reach: Arc<Reach>,
    pub(crate) config: Config,
    /// Of connections for which nothing else is set.
    pub(super) policy: Arc<PathPolicy>,
    pub(super) announcements: Arc<Announcements>,
    pub(super) plan: BindPlan,
    pub(super) monitor: Arc<dyn AddressMonitor>,
    pub(super) addresses: watch::Receiver<Arc<AddressSet>>,
    /// The addresses that the sockets were bound for last.
    pub(super) bound: watch::Sender<Arc<AddressSet>>,
    /// Addresses that this host had and lost.
    pub(super) lost: Mutex<HashSet<IpAddr>>,
    pub(super) sockets: Mutex<Sockets>,
    pub(super) resolver: Mutex<Option<Arc<dyn Resolver>>>,
    pub(crate) registry: Registry,
    pub(crate) listeners: Listeners,
    pub(crate) half_open: HalfOpen,
    pub(super) closed: AtomicBool,
    pub(super) tasks: Mutex<Vec<AbortHandle>>,
}

impl EndpointInner {
    pub(crate) fn addresses(&self) -> Arc<AddressSet> {
        self.addresses.borrow().clone()
    }

    /// The addresses to dial from, and whether no others may be used.
    pub(crate) fn sources(&self) -> (Arc<AddressSet>, bool) {
        let set = self.addresses();
        match self.plan.ip {
            Some(ip) if !ip.is_unspecified() => (Arc::new(self.only(&set, ip)), true),
            _ => (set, self.is_exclusive()),
        }
    }

    fn only(&self, set: &AddressSet, ip: IpAddr) -> AddressSet {
        let mut addresses: Vec<LocalAddress> =
            set.addresses.iter().filter(|address| address.ip == ip).cloned().collect();
        if addresses.is_empty() && self.has(set, ip) {
            addresses.push(LocalAddress { ip, interface: None });
        }
        AddressSet { addresses, ..*set }
    }

    /// Changes once the sockets have followed the addresses, so that others can be told.
    pub(crate) fn bound_watch(&self) -> watch::Receiver<Arc<AddressSet>> {
        self.bound.subscribe()
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.monitor.is_exclusive()
    }

    pub(crate) fn resolver(&self) -> Option<Arc<dyn Resolver>> {
        lock(&self.resolver).clone()
    }

    /// Where others may reach this endpoint's sockets.
    pub(crate) fn reachable(&self) -> Vec<SocketAddr> {
        self.reachable_in(&self.addresses())
    }

    /// As [`reachable`](Self::reachable), but a new address counts only from when we are heard there.
    pub(crate) fn bound_at(&self) -> Vec<SocketAddr> {
        self.reachable_in(&self.bound.borrow())
    }

    fn reachable_in(&self, set: &AddressSet) -> Vec<SocketAddr> {
        let ips = match self.plan.ip {
            Some(ip) if !ip.is_unspecified() => vec![ip],
            _ => set.reachable(),
        };
        let permitted = |ip: &IpAddr| {
            let mut same = set.addresses.iter().filter(|address| address.ip == *ip);
            self.policy.interfaces.is_empty() || same.any(|a| self.policy.permits(&self.policy.interface(a)))
        };
        ips.into_iter().filter(permitted).map(|ip| SocketAddr::new(ip, self.plan.port)).collect()
    }

    /// What a new connection's tasks and handles will share.
    pub(crate) fn shared(&self, engine: whimbrel_proto::Connection, remote: Vec<SocketAddr>) -> Arc<Shared> {
        Shared::new(engine, remote, self.policy.clone(), self.announcements.clone())
    }

    pub(super) fn update_announcements(&self, set: &AddressSet) {
        self.announcements.update(set, &self.reachable_in(set), &self.policy);
    }

    pub(crate) fn engine_config(&self, target: Option<&Name>) -> whimbrel_proto::Config {
        let mut config = self.config.engine();
        config.params.target = target.map(ToString::to_string);
        config.params.notice_addresses = self.reachable();
        config.params.notice_addresses.truncate(whimbrel_proto::MAX_NOTICE_ADDRESSES);
        config
    }

    pub(super) async fn lookup(&self, name: &Name) -> Result<EndpointAddr, ConnectError> {
        let resolver = self.resolver().ok_or_else(|| ConnectError::NoResolver(name.clone()))?;
        let looked_up = tokio::time::timeout(self.config.connect_timeout, resolver.lookup(name)).await;
        let late = || ResolveError::Unreachable("no answer in time".into());
        match looked_up.unwrap_or_else(|_| Err(late())) {
            Ok(record) if record.record().revoked => Err(ConnectError::NotFound(name.clone())),
            Ok(record) => Ok(EndpointAddr::new(record.record().id, record.record().addrs.clone())),
            Err(ResolveError::NotFound) => Err(ConnectError::NotFound(name.clone())),
            Err(source) => Err(ConnectError::Resolve { name: name.clone(), source }),
        }
    }

    /// Adds TCP listeners to the sockets, once.
    pub(super) fn start_listening(self: &Arc<Self>) -> Result<(), BindError> {
        lock(&self.sockets).listen(self, self.plan.port).map_err(bind_error)
    }

    /// Binds anew for these addresses, on the same port. False if that must be tried again.
    async fn rebind(self: &Arc<Self>, set: &AddressSet) -> bool {
        let ips = self.plan.addresses(set, self.is_exclusive());
        let gone: Vec<Bound> = {
            let mut sockets = lock(&self.sockets);
            sockets.bound.extract_if(|ip, _| !ips.contains(ip)).map(|(_, bound)| bound).collect()
        };
        for bound in gone {
            bound.close().await;
        }
        let result = lock(&self.sockets).bind(self, &ips, self.plan.port);
        if let Err((address, error)) = &result {
            tracing::warn!(%address, %error, "cannot listen at the new address yet");
        }
        result.is_ok()
    }

    /// Sends a datagram from the sockets of the target's family. What cannot be sent now is lost, as
    /// datagrams are.
    pub(crate) fn send_notice(&self, datagram: &[u8], target: SocketAddr) {
        for socket in lock(&self.sockets).bound.values().map(|bound| &bound.udp) {
            if socket.address().is_ipv4() != target.is_ipv4() {
                continue;
            }
            if let Err(error) = socket.send_to(datagram, target) {
                tracing::debug!(%target, %error, "cannot send a notice now");
            }
        }
    }

    /// The port of the sockets.
    pub(crate) fn port(&self) -> u16 {
        self.plan.port
    }

    pub(super) fn shut(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.listeners.clear();
        self.stop_if_done();
    }

    /// Once the endpoint is closed, its sockets go with its last connection: until then they are
    /// needed to move.
    pub(crate) fn stop_if_done(&self) {
        if self.closed.load(Ordering::Relaxed) && self.registry.is_empty() {
            lock(&self.sockets).bound.values().for_each(Bound::abort);
            lock(&self.tasks).drain(..).for_each(|task| task.abort());
        }
    }

    /// Once the endpoint is closed and its last connection gone: returns when its port is free again.
    pub(super) async fn unbind(&self) {
        if !self.closed.load(Ordering::Relaxed) || !self.registry.is_empty() {
            return;
        }
        let bound: Vec<Bound> = lock(&self.sockets).bound.drain().map(|(_, bound)| bound).collect();
        for bound in bound {
            bound.close().await;
        }
    }

    /// Whether nobody else can reach this host for now. Addresses that were given by hand are meant as they are.
    pub(crate) fn is_cut_off(&self, set: &AddressSet) -> bool {
        set.is_cut_off() && !self.is_exclusive()
    }

    fn has(&self, set: &AddressSet, ip: IpAddr) -> bool {
        // All of 127/8 belongs to every host, although only 127.0.0.1 is listed.
        set.contains(ip) || (ip.is_loopback() && !self.is_exclusive())
    }

    fn note_lost(&self, before: &AddressSet, set: &AddressSet) {
        let mut lost = lock(&self.lost);
        if lost.len() > MAX_LOST {
            lost.clear();
        }
        lost.extend(before.addresses.iter().map(|address| address.ip));
        lost.retain(|ip| !self.has(set, *ip));
    }

    /// Whether the address is known to be gone. A new path that was being made meanwhile may still be on it, and what
    /// gave up the others has not seen it: whoever adds a path asks afterwards.
    pub(crate) fn has_lost(&self, ip: IpAddr) -> bool {
        // It may be back already and not told of yet: the kernel knows.
        let is_back = || !self.is_exclusive() && std::net::UdpSocket::bind((ip, 0)).is_ok();
        lock(&self.lost).contains(&ip) && !is_back()
    }

    /// Reacts to a new set of addresses.
    fn addresses_changed(self: &Arc<Self>, before: &AddressSet, set: &AddressSet) {
        self.note_lost(before, set);
        let new = set.addresses.iter().filter(|address| !before.contains(address.ip));
        new.for_each(|address| self.reach.forget(address.ip));
        let reachable = self.reachable_in(set);
        // Loopback addresses, when nothing else is left, are no use to anybody elsewhere.
        let moved = before.reachable() != set.reachable() && !self.is_cut_off(set);
        self.update_announcements(set);
        for shared in self.registry.all() {
            shared.lose_paths_without(|ip| self.has(set, ip));
            let mut told = reachable.clone();
            told.truncate(whimbrel_proto::MAX_NOTICE_ADDRESSES);
            shared.with(|state| state.engine.set_notice_addresses(told));
            shared.tell_addresses();
            if set.wakes != before.wakes {
                shared.probe();
            }
        }
        for shared in self.registry.dialled() {
            shared.restart.notify_one();
        }
        if moved {
            for shared in self.registry.accepted() {
                tokio::spawn(notices::tell(self.clone(), shared));
            }
        }
    }
}

pub(super) async fn follow_addresses(endpoint: Arc<EndpointInner>) {
    let mut addresses = endpoint.addresses.clone();
    // A change since then is still unseen.
    let mut before = endpoint.bound.borrow().clone();
    let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
    let mut bound = true;
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::select! {
            changed = addresses.changed() => {
                if changed.is_err() {
                    return;
                }
                let set = addresses.borrow_and_update().clone();
                // Sockets on all addresses, as the others have, need not follow.
                bound = !endpoint.is_exclusive() || endpoint.rebind(&set).await;
                pause = FIRST_PAUSE;
                endpoint.bound.send_replace(set.clone());
                endpoint.addresses_changed(&before, &set);
                before = set;
            }
            () = tokio::time::sleep(pause), if !bound => {
                bound = endpoint.rebind(&before).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            _ = housekeeping.tick() => endpoint.registry.keep_house().await,
        }
    }
}

pub(super) fn bind_error((address, source): (SocketAddr, std::io::Error)) -> BindError {
    BindError::Socket { address, source }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
