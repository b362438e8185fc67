//! What this host tells by mDNS.

use mdns_sd::{ServiceDaemon, ServiceInfo};
use whimbrel_base::{EndpointId, Name, SignedRecord};

use crate::encoding::{SERVICE, instance, strings};

/// The domain of host names.
const HOST: &str = "local.";

/// Tells records. Clones tell the same.
#[derive(Clone)]
pub(crate) struct Telling(ServiceDaemon);

impl Telling {
    pub(crate) fn new(daemon: ServiceDaemon) -> Self {
        Self(daemon)
    }

    /// Tells a record, in the place of what was told for the same name and key before.
    pub(crate) fn tell(&self, record: &SignedRecord) -> Result<(), mdns_sd::Error> {
        let told = record.record();
        let instance = instance(told.id, &told.name);
        let port = told.addrs.first().map_or(0, |at| at.port());
        let host = format!("{instance}.{HOST}");
        // Where it is, is in the record; mDNS wants addresses that are of the interface.
        let info = ServiceInfo::new(SERVICE, &instance, &host, (), port, strings(record));
        let mut info = info?.enable_addr_auto();
        // The instance is a digest of key and name: no other endpoint has it, and one that says so must not
        // have this one be called otherwise.
        info.set_requires_probe(false);
        self.0.register(info)
    }

    /// Tells no more what was told for this name and key, and says so.
    pub(crate) fn withdraw(&self, id: EndpointId, name: &Name) -> Result<(), mdns_sd::Error> {
        self.0.unregister(&format!("{}.{SERVICE}", instance(id, name))).map(drop)
    }
}
