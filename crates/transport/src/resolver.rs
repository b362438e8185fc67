//! From names to addresses: the trait; `whimbrel-names` has the service and the resolver over it.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::watch;
use whimbrel_base::{Name, SignedRecord};

use crate::error::ResolveError;

/// A boxed future, so that resolvers can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds and publishes records. Implementations verify signatures before they return a record.
pub trait Resolver: Send + Sync + 'static {
    /// The newest record of a name.
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>>;

    /// The newest record of a name, and every later one as it is published. Starts with `None`;
    /// keeps on over outages of the service. Dropping the receiver ends the watch.
    fn watch(&self, name: &Name) -> watch::Receiver<Option<SignedRecord>>;

    /// Makes a record known. Returns once the service has stored it.
    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>>;
}
