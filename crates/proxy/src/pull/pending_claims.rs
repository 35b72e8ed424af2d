//! `PendingClaims`: the clients that wait for the size of a blob, to claim a range of the blob then.

use std::convert::Infallible;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The clients that wait for the size of a blob, to claim a range of the blob then. The front of the
/// fill starts after their claims: otherwise they cut off bytes that are in transit.
pub(crate) struct PendingClaims {
    /// `None`: the front starts, so a new client is not waited for.
    sender: Mutex<Option<UnboundedSender<Infallible>>>,
    receiver: Mutex<Option<UnboundedReceiver<Infallible>>>,
}

/// One client that is about to claim a range. The client drops this value immediately after its
/// claim.
pub(crate) struct PendingClaim(
    #[expect(dead_code, reason = "its drop is the message")] UnboundedSender<Infallible>,
);

impl Default for PendingClaims {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self {
            sender: Mutex::new(Some(sender)),
            receiver: Mutex::new(Some(receiver)),
        }
    }
}

impl PendingClaims {
    /// Records a client. `None` once the front has started.
    pub(crate) fn enter(&self) -> Option<PendingClaim> {
        self.sender.lock().clone().map(PendingClaim)
    }

    /// Waits until all recorded clients have claimed their ranges. Clients that come later are not
    /// recorded.
    pub(crate) async fn settled(&self) {
        self.sender.lock().take();
        let receiver = self.receiver.lock().take();
        if let Some(mut receiver) = receiver {
            // The channel closes when the last client has dropped its sender.
            let closed = receiver.recv().await;
            debug_assert!(closed.is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::download_slot::at_once;

    #[tokio::test]
    async fn the_front_waits_for_the_recorded_clients_only() {
        let claims = PendingClaims::default();
        let [one, two] = [claims.enter(), claims.enter()];
        assert!(one.is_some() && two.is_some());
        let mut settled = std::pin::pin!(claims.settled());
        assert!(at_once(&mut settled).await.is_none());
        assert!(claims.enter().is_none());
        drop(one);
        assert!(at_once(&mut settled).await.is_none());
        drop(two);
        settled.await;
        claims.settled().await;
    }
}
