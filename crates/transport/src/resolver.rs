//! From names to addresses: the trait; `whimbrel-names` has the service and the resolver over it.

use std::future::Future;
use std::pin::Pin;

use whimbrel_base::{Delegation, EndpointAddr, EndpointId, Name, SignedRecord};

use crate::error::ResolveError;
use crate::watch::Watch;

/// A boxed future, so that resolvers can be chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds and publishes records. Implementations verify signatures before they return a record.
pub trait Resolver: Send + Sync + 'static {
    /// The newest record of a name.
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>>;

    /// The newest record of a name, and every later one as it is published. Starts with `None`;
    /// keeps on over outages of the service. Dropping the [`Watch`] ends it.
    fn watch(&self, name: &Name) -> Watch<Option<SignedRecord>>;

    /// Makes a record known. Returns once the service has stored it.
    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>>;

    /// Where an endpoint is that is known by its id only. Whoever is dialled there proves the id, so an
    /// answer needs no signature. By default nobody knows.
    fn find(&self, _id: EndpointId) -> BoxFuture<'_, Result<EndpointAddr, ResolveError>> {
        Box::pin(std::future::ready(Err(ResolveError::NotFound)))
    }

    /// A delegation that the user of this endpoint's name made in place of `present`, if there is one: for
    /// the same name and key, by the same issuer, verified, and ending later. By default there is none.
    fn renewed<'a>(
        &'a self,
        present: &'a Delegation,
    ) -> BoxFuture<'a, Result<Option<Delegation>, ResolveError>> {
        let _ = present;
        Box::pin(std::future::ready(Ok(None)))
    }
}
