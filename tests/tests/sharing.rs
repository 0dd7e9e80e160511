//! Mounts of one URL share one repository in the store: many mounts cost one fetch, and a poll without news is one request.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, content, refs};
use gitmount_tests::mount::Account;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Asked, HttpServer};

fn fetches(asked: &[Asked]) -> usize {
    asked.iter().filter(|asked| asked.fetch).count()
}

#[test]
fn a_poll_without_news_is_one_request() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let server = HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)?;
    let account = Account::new()?;
    let mounted = account.mount(&server.url("refs.git"), &["--allow-http", "--pull", "never", "--ref", "main"])?;
    for round in 0..3 {
        server.take_requests();
        mounted.pull()?;
        let asked = server.take_requests();
        ensure!(asked.len() == 1 && fetches(&asked) == 0, "poll {round}: {asked:?}");
    }
    Ok(())
}

#[test]
fn ten_mounts_at_once_cost_one_fetch() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let server = HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)?;
    let account = Account::new()?;
    let url = server.url("refs.git");
    let points = (0..10).map(|_| account.mount_point()).collect::<Result<Vec<_>>>()?;
    let mut commands: Vec<_> =
        points.iter().map(|dir| account.command(["mount".as_ref(), "--allow-http".as_ref(), url.as_ref(), dir.as_os_str()])).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = commands.iter_mut().map(|command| scope.spawn(|| gitmount_tests::run::run(command)?.success())).collect();
        for thread in running {
            thread.join().map_err(|_| anyhow::anyhow!("a mount panicked"))??;
        }
        anyhow::Ok(())
    })?;
    for dir in &points {
        ensure!(std::fs::read_to_string(dir.join("which"))? == "main\n");
    }
    let asked = server.requests();
    ensure!(fetches(&asked) == 1, "ten mounts fetched {} times: {asked:?}", fetches(&asked));
    let stored = std::fs::read_dir(account.store().join("repos"))?.count();
    ensure!(stored == 1, "ten mounts of one URL made {stored} repositories");
    for dir in &points {
        account.run(["unmount".as_ref(), dir.as_os_str()])?.success()?;
    }
    Ok(())
}

#[test]
fn spellings_of_one_url_are_one_repository() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let server = HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)?;
    let account = Account::new()?;
    let url = server.url("refs.git");
    for spelling in [url.clone(), format!("{url}/"), url.replace("http://", "HTTP://")] {
        account.mount(&spelling, &["--allow-http"])?.unmount()?;
    }
    let stored = std::fs::read_dir(account.store().join("repos"))?.count();
    ensure!(stored == 1, "three spellings of one URL made {stored} repositories");
    ensure!(fetches(&server.requests()) == 1);
    Ok(())
}

#[test]
fn another_ref_of_a_fetched_repository_fetches_only_what_is_new() -> Result<()> {
    let dir = scratch::dir()?;
    let names: Vec<String> = (0..500).map(|n| format!("dir/file-{n}")).collect();
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let contents: Vec<String> = (0..500).map(|n| hex(content::noise(500 + n))).collect();
    let files: Vec<(&str, &str)> = names.iter().zip(&contents).map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let repo = fixtures::small(&dir.path().join("r.git"), &files)?;
    fixtures::commit(&repo, "second", &[("dir/file-0", "changed\n")])?;
    repo.run(["branch", "other", "main"])?;
    repo.run(["update-ref", "refs/heads/main", "main~1"])?;
    let server = HttpServer::plain(dir.path())?;
    let account = Account::new()?;
    let first = account.mount(&server.url("r.git"), &["--allow-http"])?;
    let packs = || -> Result<u64> {
        let stored = std::fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
        let packs = std::fs::read_dir(stored.join("objects/pack"))?.filter_map(|e| e.ok()?.metadata().ok());
        Ok(packs.map(|status| status.len()).sum())
    };
    let before = packs()?;
    let started = Instant::now();
    let second = account.mount(&server.url("r.git"), &["--allow-http", "--ref", "other"])?;
    let took = started.elapsed();
    let grown = packs()? - before;
    ensure!(second.text("dir/file-0")? == "changed\n" && first.text("dir/file-0")? != "changed\n");
    ensure!(grown < before / 4, "the second ref brought {grown} bytes beside {before}");
    // The promise is 50 ms on a quiet machine; this only notices a second full fetch or a wait.
    ensure!(took.as_millis() < 2000, "the second mount took {took:?}");
    Ok(())
}

#[test]
fn every_mount_of_a_url_keeps_its_own_ref() -> Result<()> {
    let (dir, repo) = fixtures::copy("refs", refs::refs)?;
    let server = HttpServer::plain(dir.path())?;
    let account = Account::new()?;
    let url = server.url("refs.git");
    let main = account.mount(&url, &["--allow-http", "--ref", "main"])?;
    let orphan = account.mount(&url, &["--allow-http", "--ref", "orphan"])?;
    let old = orphan.commit()?;
    let new = fixtures::commit(&repo, "news on main", &[("which", "new main\n")])?;
    main.pull()?;
    ensure!(main.commit()? == new && orphan.commit()? == old);
    let removed = main.unmount();
    ensure!(removed.is_ok() && orphan.text("which")? == "orphan\n");
    Ok(())
}
