//! Codes by mail, for those who register their address as a user name.

use whimbrel_base::{EndpointId, Name};
use whimbrel_transport::Connection;

use super::answers::accepted;
use super::{Shared, turns};
use crate::clock::now;
use crate::error::NamesError;
use crate::protocol::Response;

const SUBJECT: &str = "Your code for a Whimbrel name service";

impl Shared {
    /// Sends a code, or takes one that was sent.
    pub(super) async fn prove_mail(
        &self,
        peer: EndpointId,
        connection: &Connection,
        user: &Name,
        code: Option<&str>,
    ) -> Result<Response, NamesError> {
        let from = turns::address(connection);
        let Some(code) = code else { return self.send_code(peer, connection, user).await };
        if !self.turns.redeem(peer, from) {
            return Err(NamesError::TooOften);
        }
        self.registry.prove_mail(peer, user, code, now()).map(accepted)
    }

    async fn send_code(
        &self,
        peer: EndpointId,
        connection: &Connection,
        user: &Name,
    ) -> Result<Response, NamesError> {
        let smtp = self.smtp.get().ok_or(NamesError::NoMail)?;
        self.registry.may_prove_mail(peer, user).await?;
        if !self.turns.mail(peer, turns::address(connection), user) {
            return Err(NamesError::TooOften);
        }
        let code = self.registry.mail_code(peer, user, now())?;
        let text = format!(
            "Somebody wants to register {user} for the key\n{peer}\n\nIf that is you, this proves it for an hour:\n\n\
             whimbrel id register {user} --code {code}\n\nIf it is not, do nothing.\n"
        );
        if let Err(error) = smtp.send(user, SUBJECT, &text).await {
            tracing::warn!(%error, %smtp, "cannot send mail");
            return Err(NamesError::MailFailed);
        }
        Ok(accepted(now().saturating_add(std::time::Duration::from_secs(60 * 60))))
    }
}
