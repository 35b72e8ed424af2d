//! Requests in the name of a client: its login and no other, and no token of one for another.

use pierhead_remote::{ClientCredentials, Verdict, Wanted};
use pierhead_testkit::registry::{Auth, Role, TokenAuth};

use super::*;

/// Ann and Bob have logins; the repository is private, and pierhead itself logs in as Ann.
async fn private() -> Pair {
    let auth = TokenAuth {
        users: vec![
            ("ann".to_owned(), "secret".to_owned()),
            ("bob".to_owned(), "other".to_owned()),
        ],
        private: vec![REPOSITORY.to_owned()],
        ..TokenAuth::default()
    };
    let builder = FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth));
    Pair::with(builder, |_, upstream| {
        upstream.credentials = Some(user("ann", "secret"));
    })
    .await
}

fn bob() -> ClientCredentials {
    ClientCredentials::basic("bob", "other")
}

async fn verdict(pair: &Pair, wanted: Wanted<'_>, who: &ClientCredentials) -> Verdict {
    soon(pair.client.authorize(&name(), &repository(), wanted, who))
        .await
        .expect("a verdict")
}

#[tokio::test]
async fn the_upstream_judges_each_login_by_itself() {
    let pair = private().await;
    let (layer, tag) = (pair.layer(), reference(":latest").target);
    let wrong = ClientCredentials::basic("bob", "guess");
    // Ours, which is good, must help nobody.
    pair.manifest().await.expect("a manifest");
    for wanted in [Wanted::Manifest(&tag), Wanted::Blob(&layer)] {
        for (who, expected) in [
            (&bob(), Verdict::Granted),
            (&wrong, Verdict::Denied),
            (&ClientCredentials::anonymous(), Verdict::Denied),
        ] {
            assert_eq!(verdict(&pair, wanted, who).await, expected, "{wanted:?}");
        }
    }
    let absent = reference(":absent").target;
    let asked = verdict(&pair, Wanted::Manifest(&absent), &bob()).await;
    assert_eq!(asked, Verdict::Absent);
}

#[tokio::test]
async fn a_password_is_judged_where_there_are_no_tokens() {
    let pair = Pair::with(
        FakeRegistry::builder().basic_auth("ann", "secret"),
        |_, upstream| upstream.credentials = Some(user("ann", "secret")),
    )
    .await;
    pair.manifest().await.expect("a manifest");
    let layer = pair.layer();
    for (who, expected) in [
        (ClientCredentials::basic("ann", "secret"), Verdict::Granted),
        (ClientCredentials::basic("ann", "guess"), Verdict::Denied),
        (ClientCredentials::anonymous(), Verdict::Denied),
    ] {
        assert_eq!(verdict(&pair, Wanted::Blob(&layer), &who).await, expected);
    }
}

/// Whoever was let in a moment ago has left a token behind: the next one must not find it.
#[tokio::test]
async fn no_token_serves_two_logins() {
    let pair = private().await;
    let fetch = async |client: Client| {
        soon(client.manifest(&reference(":latest"), &Known::default())).await
    };
    let bobs = pair.client.on_behalf(&bob());
    fetch(bobs.clone()).await.expect("bob may");
    fetch(pair.client.on_behalf(&bob())).await.expect("bob may");
    let tokens = |pair: &Pair| pair.upstream.count(|request| request.role == Role::Tokens);
    assert_eq!(tokens(&pair), 1, "bob's token is bob's for longer");
    let nobody = pair.client.on_behalf(&ClientCredentials::anonymous());
    let refused = fetch(nobody).await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    let so_far = tokens(&pair);
    fetch(pair.client.clone()).await.expect("ours is ann's");
    assert_eq!(tokens(&pair), so_far + 1, "bob's was there");
    let mut stream = soon(bobs.blob(&name(), &repository(), &pair.layer(), 0))
        .await
        .expect("a stream");
    assert!(soon(stream.next()).await.is_some_and(|bytes| bytes.is_ok()));
    assert_eq!(tokens(&pair), so_far + 1);
}

#[tokio::test]
async fn no_verdict_comes_of_trouble_or_of_a_login_page() {
    let pair = private().await;
    let tag = reference(":latest").target;
    let ask = async || {
        let (name, repository, who) = (name(), repository(), bob());
        let wanted = Wanted::Manifest(&tag);
        soon(pair.client.authorize(&name, &repository, wanted, &who)).await
    };
    let page = Fault::Header("content-type", "text/html".to_owned());
    let (page, mute) = (
        pair.upstream.inject(page.on_manifests()),
        pair.upstream
            .inject(Fault::WithoutHeader("docker-content-digest").on_manifests()),
    );
    let asked = ask().await;
    assert!(matches!(asked, Err(Error::Protocol { .. })), "{asked:?}");
    page.remove();
    mute.remove();
    for status in [429, 500, 503] {
        pair.upstream.clear_faults();
        pair.upstream.inject(Fault::Status(status).on_manifests());
        assert!(ask().await.is_err(), "{status}");
    }
    pair.upstream.clear_faults();
    pair.upstream.stop_tokens().await;
    pair.upstream.expire_tokens();
    assert!(ask().await.is_err());
}
