//! HTTP: statuses, logins, redirects, and the one-request list of refs.

use super::*;

fn answer(status: &str, headers: &[&str], body: &str) -> String {
    let headers: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn packets(lines: &[&str]) -> String {
    let mut out = vec![];
    for line in lines {
        match *line {
            "0000" => pkt::put_flush(&mut out),
            line => pkt::put(&mut out, line.as_bytes()),
        }
    }
    String::from_utf8(out).unwrap()
}

const ID: &str = "0123456789abcdef0123456789abcdef01234567";

fn v2() -> String {
    let lines =
        ["# service=git-upload-pack\n", "0000", "version 2\n", "ls-refs=unborn\n", "fetch=shallow\n", "object-format=sha1\n", "0000"];
    answer("200 OK", &["Content-Type: application/x-git-upload-pack-advertisement"], &packets(&lines))
}

fn refs(lines: &[&str]) -> String {
    answer("200 OK", &["Content-Type: application/x-git-upload-pack-result"], &packets(lines))
}

/// What a fetch does: the handshake, and reading the answer to its end as the next request does.
fn learn(host: &Host, auth: &Auth) {
    let mut connection = connect(&host.url(), auth, &net(Path::new("/nowhere")), &Arc::default()).unwrap();
    connection.transport.handshake(Service::UploadPack, &[]).map(|a| a.actual_protocol).unwrap();
    let request = connection.transport.request(Default::default(), gix::protocol::transport::client::MessageKind::Flush, false);
    drop(request.unwrap());
}

fn once(host: &Host, auth: &Auth) -> Result<Option<Vec<RemoteRef>>> {
    ls_refs_once(&host.url(), auth, &net(Path::new("/nowhere")), &Arc::default(), &["refs/heads/main".into()])
}

fn basic(login: Login) -> Auth {
    Auth { http: HttpAuth::Login(login), ..Auth::default() }
}

#[derive(Default)]
struct Helper {
    log: Mutex<Vec<String>>,
    none: bool,
}

impl crate::credential::LoginSource for Helper {
    fn login(&self, url: &str) -> Result<Option<Login>> {
        lock(&self.log).push(format!("login {url}"));
        Ok(if self.none { None } else { Some(login("alice")) })
    }

    fn accepted(&self, url: &str, login: &Login) {
        lock(&self.log).push(format!("accepted {url} {}", login.username));
    }

    fn refused(&self, url: &str, login: &Login) {
        lock(&self.log).push(format!("refused {url} {}", login.username));
    }
}

fn asking(none: bool) -> (Arc<Helper>, Auth) {
    let helper = Arc::new(Helper { none, ..Helper::default() });
    (helper.clone(), Auth { http: HttpAuth::Ask(helper), ..Auth::default() })
}

#[test]
fn a_request_is_what_hosts_expect_of_git() {
    let host = Host::new([v2()]);
    assert_eq!(shake(&host.url(), &Auth::default()).unwrap(), Protocol::V2);
    let requests = host.requests();
    assert_eq!(requests.len(), 1);
    let head = requests[0].to_ascii_lowercase();
    assert!(head.starts_with("get /a%20b.git/info/refs?service=git-upload-pack http/1.1\r\n"), "{head}");
    for line in ["git-protocol: version=2", &format!("user-agent: {AGENT}"), "pragma: no-cache"] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
    assert!(!head.contains("authorization") && !head.contains("accept-encoding"), "{head}");
}

#[test]
fn statuses_say_whose_fault_it_is() {
    let cases = [
        ("401 Unauthorized", Fault::Refused, "wants a login"),
        ("403 Forbidden", Fault::Refused, "refuses access"),
        ("404 Not Found", Fault::NotFound, "does not exist, or is private"),
        ("410 Gone", Fault::NotFound, "does not exist"),
        ("400 Bad Request", Fault::Refused, "refuses the request"),
        ("429 Too Many Requests", Fault::Unreachable, "asks for fewer requests"),
        ("500 Internal Server Error", Fault::Unreachable, "a problem of its own"),
        ("503 Service Unavailable", Fault::Unreachable, "a problem of its own"),
    ];
    for (status, fault, words) in cases {
        let plain = ["Content-Type: text/plain", "Retry-After: 17"];
        let host = Host::new([answer(status, &plain, "as the \u{1b}[1mhost\u{1b}[0m\nputs it\n")]);
        let error = shake(&host.url(), &Auth::default()).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.fault(), fault, "{text}");
        let code = status.split(' ').next().unwrap();
        assert!(text.contains(words) && text.contains(&format!("(HTTP {code}: as the [1mhost [0m puts it)")), "{text}");
        assert_eq!(error.host_wait(), (code != "401").then(|| Duration::from_secs(17)), "{text}");
        assert_eq!(host.requests().len(), 1, "a request that failed is not sent again: {text}");
    }
}

#[test]
fn a_page_is_no_repository() {
    let host = Host::new([answer("200 OK", &["Content-Type: text/html"], "<html>welcome</html>")]);
    let error = shake(&host.url(), &Auth::default()).unwrap_err();
    assert_eq!(error.fault(), Fault::NotFound);
    assert!(error.to_string().contains("answers with text/html"), "{error}");
}

#[test]
fn compressed_answers_are_not_inflated() {
    let packed = v2().replace("Content-Length", "Content-Encoding: gzip\r\nContent-Length");
    let error = shake(&Host::new([packed]).url(), &Auth::default()).unwrap_err();
    assert_eq!(error.fault(), Fault::Corrupt, "{error}");
}

#[test]
fn a_given_login_is_sent_at_once_and_its_refusal_is_final() {
    let host = Host::new([v2()]);
    shake(&host.url(), &basic(login("alice"))).unwrap();
    assert!(host.requests()[0].contains("authorization: Basic YWxpY2U6cHc="), "{:?}", host.requests());

    let host = Host::new([answer("401 Unauthorized", &["WWW-Authenticate: Basic"], "")]);
    let error = shake(&host.url(), &basic(login("alice"))).unwrap_err();
    assert!(error.fault() == Fault::Refused && error.to_string().contains("refused the login"), "{error}");
    assert_eq!(host.requests().len(), 1);
}

#[test]
fn a_source_of_logins_is_asked_once_and_told_what_came_of_it() {
    let wants = answer("401 Unauthorized", &["WWW-Authenticate: Basic realm=\"git\""], "");
    let host = Host::new([wants.clone(), v2()]);
    let (helper, auth) = asking(false);
    shake(&host.url(), &auth).unwrap();
    let place = format!("http://127.0.0.1:{}/a%20b.git", host.port);
    assert_eq!(*lock(&helper.log), [format!("login {place}"), format!("accepted {place} alice")]);
    assert!(host.requests()[1].contains("authorization: Basic"));

    let host = Host::new([wants.clone()]);
    let place = format!("http://127.0.0.1:{}/a%20b.git", host.port);
    let (helper, auth) = asking(false);
    let error = shake(&host.url(), &auth).unwrap_err();
    assert!(error.fault() == Fault::Refused && !error.to_string().contains("pw"), "{error}");
    assert_eq!(*lock(&helper.log), [format!("login {place}"), format!("refused {place} alice")]);
    assert_eq!(host.requests().len(), 2);

    let (helper, auth) = asking(true);
    let error = shake(&Host::new([wants]).url(), &auth).unwrap_err();
    assert!(error.fault() == Fault::Refused && error.to_string().contains("none was found"), "{error}");
    assert_eq!(lock(&helper.log).len(), 1);
}

#[test]
fn a_redirect_is_followed_and_later_requests_go_there() {
    let moved = answer("301 Moved Permanently", &["Location: /b.git/info/refs?service=git-upload-pack"], "");
    let host = Host::new([moved, v2(), refs(&[&format!("{ID} refs/heads/main\n"), "0000"])]);
    let auth = basic(login("alice"));
    learn(&host, &auth);
    once(&host, &auth).unwrap().expect("the host speaks V2");
    let requests = host.requests();
    assert!(requests[1].starts_with("GET /b.git/info/refs?service=git-upload-pack ") && requests[1].contains("Basic YWxpY2U6cHc="));
    assert!(requests[2].starts_with("POST /b.git/git-upload-pack "), "{}", requests[2]);
}

#[test]
fn a_login_is_not_sent_to_another_host() {
    let other = Host::new([v2()]);
    let location = format!("Location: http://localhost:{}/b.git/info/refs?service=git-upload-pack", other.port);
    let host = Host::new([answer("302 Found", &[&location], "")]);
    shake(&host.url(), &basic(login("alice"))).unwrap();
    assert!(host.requests()[0].contains("authorization:"));
    assert!(!other.requests()[0].contains("authorization:"), "{:?}", other.requests());

    let other = Host::new([answer("401 Unauthorized", &[], "")]);
    let location = format!("Location: http://localhost:{}/b.git/info/refs?service=git-upload-pack", other.port);
    let host = Host::new([answer("302 Found", &[&location], "")]);
    let error = shake(&host.url(), &basic(login("alice"))).unwrap_err();
    assert!(error.fault() == Fault::Refused && error.to_string().contains("not sent to another host"), "{error}");
}

#[test]
fn redirects_that_are_not_followed_are_named() {
    let cases = [
        ("/a%20b.git/info/refs?service=git-upload-pack", "redirects more than 5 times"),
        ("ftp://127.0.0.1/x", "redirects from http to ftp"),
        ("http://alice:hunter2@127.0.0.1/x", "with a login in it"),
        ("http://", "redirects to something that is no url"),
    ];
    for (location, words) in cases {
        let host = Host::new([answer("302 Found", &[&format!("Location: {location}")], "")]);
        let error = shake(&host.url(), &Auth::default()).unwrap_err();
        assert!(error.fault() == Fault::Refused && error.to_string().contains(words), "{location}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let login_page = answer("200 OK", &["Content-Type: text/html"], "<html>");
    let host = Host::new([answer("302 Found", &["Location: /login?token=hunter2"], ""), login_page]);
    let error = shake(&host.url(), &Auth::default()).unwrap_err();
    assert!(error.fault() == Fault::Refused && error.to_string().contains("/login, which is no git repository"), "{error}");

    let policy = UrlPolicy { allow_http: true, allow_file: false, hosts: vec!["127.0.0.1".into()] };
    let host = Host::new([answer("302 Found", &["Location: http://localhost:{port}/b/info/refs?service=git-upload-pack"], "")]);
    let held = RepoUrl::parse(&host.url().to_string(), &policy).unwrap();
    let error = shake(&held, &Auth::default()).unwrap_err();
    assert!(error.to_string().contains("not in the allow-list"), "{error}");
}

#[test]
fn refs_are_listed_in_one_request_once_the_host_is_known() {
    let main = format!("{ID} refs/heads/main\n");
    let host = Host::new([v2(), refs(&[&main, "0000"]), refs(&["ERR upload-pack: no\n"]), v2()]);
    let auth = Auth::default();
    assert_eq!(once(&host, &auth).unwrap(), None, "nothing is known yet");
    assert_eq!(host.requests().len(), 0, "and nothing is asked");
    learn(&host, &auth);
    let listed = once(&host, &auth).unwrap().expect("the host speaks V2");
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].id.to_string().as_str()), (1, "refs/heads/main", ID));
    let post = host.requests()[1].to_ascii_lowercase();
    assert!(post.starts_with("post /a%20b.git/git-upload-pack ") && post.contains("git-protocol: version=2"), "{post}");
    assert_eq!(once(&host, &auth).unwrap(), None, "a surprise is no list");
    assert_eq!(once(&host, &auth).unwrap(), None, "and the host is to be asked anew");
    assert_eq!(host.requests().len(), 3);
}

#[test]
fn a_login_that_was_asked_for_serves_the_polls_that_follow() {
    let wants = answer("401 Unauthorized", &["WWW-Authenticate: Basic"], "");
    let host = Host::new([wants, v2(), refs(&["0000"])]);
    let (helper, auth) = asking(false);
    learn(&host, &auth);
    assert_eq!(once(&host, &auth).unwrap(), Some(vec![]));
    assert_eq!(lock(&helper.log).iter().filter(|l| l.starts_with("login")).count(), 1);
    assert!(host.requests()[2].contains("authorization: Basic"));
    let (stranger, auth) = asking(true);
    once(&host, &auth).unwrap();
    assert!(!host.requests()[3].contains("authorization"), "another source's login is not used");
    assert!(lock(&stranger.log).is_empty());
}

#[test]
fn a_host_that_asks_to_wait_is_not_asked_again_at_once() {
    let host = Host::new([v2(), answer("503 Service Unavailable", &["Retry-After: 9"], "")]);
    learn(&host, &Auth::default());
    let error = once(&host, &Auth::default()).unwrap_err();
    assert_eq!((error.fault(), error.host_wait()), (Fault::Unreachable, Some(Duration::from_secs(9))));
}

#[test]
fn a_body_that_is_cut_or_stalls_ends_the_fetch() {
    let cut = v2().replace("Content-Length: ", "Content-Length: 9");
    let error = shake(&Host::new([cut]).url(), &Auth::default()).and_then(|_| Err::<(), _>(StoreError::new(Fault::Internal, "read")));
    // The advertisement is whole before the cut, so the handshake may succeed; what follows must not.
    assert!(error.is_err());
    let half = v2()[..v2().len() - 30].to_owned();
    let error = shake(&Host::new([half]).url(), &Auth::default()).unwrap_err();
    assert_eq!(error.fault(), Fault::Unreachable, "{error}");
}
