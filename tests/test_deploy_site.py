"""Versions of the site: tags become versions, everything else is `main`."""

import deploy_site


def test_a_tag_of_a_release_is_the_latest_version():
    assert deploy_site.names_of(["v1.2.3"]) == ["1.2", "latest"]
    assert deploy_site.names_of(["nightly", "v0.10.0"]) == ["0.10", "latest"]


def test_other_commits_are_main():
    assert deploy_site.names_of([]) == ["main"]
    assert deploy_site.names_of(["v1", "v1.2.3rc1"]) == ["main"]


def test_the_default_is_a_release_where_there_is_one():
    main = {"version": "main", "title": "main", "aliases": []}
    release = {"version": "0.2", "title": "0.2", "aliases": ["latest"]}
    assert deploy_site.default_of([main]) == "main"
    assert deploy_site.default_of([main, release]) == "latest"
