package house

import (
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// Every link of the documentation into the repository leads to a file of it, and its
// anchor to a heading there. docs/ is a site as well, on which what lies outside of it is
// not: its pages link to that by its address.
func TestLinksOfTheDocumentationLeadSomewhere(t *testing.T) {
	tree := os.DirFS("../..")
	pages, err := markdownFiles(tree)
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 20 {
		t.Fatalf("found %d pages only: %v", len(pages), pages)
	}
	broken, links, err := brokenLinks(tree, pages)
	if err != nil {
		t.Fatal(err)
	}
	if links < 100 {
		t.Errorf("found %d links only", links)
	}
	for _, b := range broken {
		t.Error(b)
	}
}

// Every page of docs itself is in the navigation of the site; design, results and
// reports are reached from other pages.
func TestNavigationOfTheSiteIsComplete(t *testing.T) {
	nav, err := os.ReadFile("../../mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m): ([\w/.-]+\.md)$`).FindAllStringSubmatch(string(nav), -1) {
		listed[m[1]] = true
		if _, err := os.Stat("../../docs/" + m[1]); err != nil {
			t.Errorf("mkdocs.yml lists %s: %v", m[1], err)
		}
	}
	entries, err := os.ReadDir("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".md") && !listed[e.Name()] {
			t.Errorf("mkdocs.yml does not list docs/%s", e.Name())
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	tree := fstest.MapFS{
		"README.md": {Data: []byte("# A thing\n\n[a](docs/a.md) [b](docs/a.md#two-words) [c](#a-thing) [d](docs) ![e](docs/e.svg)\n" +
			"[web](https://example.com/x) [mail](mailto:a@b)\n`[code](nowhere.md)`\n```\n[code](nowhere.md)\n```\n" +
			"[gone](docs/gone.md) [lost](docs/a.md#three) [own](#lost) [out](../x.md)\n<a href=\"docs/h.md\">h</a>\n\n[r]: docs/r.md\n")},
		"docs/a.md": {Data: []byte("# `A`: head\n## Two words\n## Two words\n[up](" + blob + "README.md#a-thing) [self](#a-head) [second](#two-words-1) <a id=\"x\"></a>[x](#x)\n```\n# no heading\n```\n[no](#no-heading)\n" +
			"[out](../README.md) [gone](" + blob + "x.md) [dir](" + strings.Replace(blob, "blob", "tree", 1) + "docs)\n")},
		"docs/e.svg": {},
	}
	got, links, err := brokenLinks(tree, []string{"README.md", "docs/a.md"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"README.md:9: docs/gone.md: no such file",
		"README.md:9: docs/a.md#three: docs/a.md has no such heading",
		"README.md:9: #lost: README.md has no such heading",
		"README.md:9: ../x.md: no such file",
		"README.md:10: docs/h.md: no such file",
		"README.md:12: docs/r.md: no such file",
		"docs/a.md:8: #no-heading: docs/a.md has no such heading",
		"docs/a.md:9: ../README.md: it is not part of the site: write " + blob + "README.md",
		"docs/a.md:9: " + blob + "x.md: no such file",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("broken (-want +got):\n%s", diff)
	}
	if links != 19 {
		t.Errorf("%d links, want 19", links)
	}
}

// markdownFiles lists the documentation: what users read, and not test data.
func markdownFiles(tree fs.FS) (pages []string, err error) {
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (slices.Contains(skipped, d.Name()) || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".md"):
			pages = append(pages, name)
		}
		return nil
	})
	return pages, err
}

var (
	linkForms = []*regexp.Regexp{
		regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)`), // [text](target "title")
		regexp.MustCompile(`(?:href|src|srcset)="([^"]+)"`),
		regexp.MustCompile(`^\[[^\]]+\]:\s+(\S+)`), // [name]: target
	}
	inlineCode  = regexp.MustCompile("`[^`]*`")
	ownAnchor   = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	headingLine = regexp.MustCompile(`^#{1,6} +(.*?)(?: +#+)?$`)
	linkText    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// blob is where the repository's host shows its files, and with tree in the place of
// blob its directories.
const blob = "https://github.com/weirdb/weir/blob/main/"

var ownAddress = regexp.MustCompile(`^https://github\.com/weirdb/weir/(?:blob|tree)/main/(.+)$`)

// brokenLinks returns each link of the pages that leads nowhere, and how many links
// within the tree there are. Links to other hosts are not followed.
func brokenLinks(tree fs.FS, pages []string) (broken []string, links int, err error) {
	anchors := make(map[string]map[string]bool) // of pages that were read
	for _, page := range pages {
		text, err := fs.ReadFile(tree, page)
		if err != nil {
			return nil, 0, err
		}
		err = eachProseLine(string(text), func(number int, line string) error {
			line = inlineCode.ReplaceAllString(line, "")
			for _, form := range linkForms {
				for _, m := range form.FindAllStringSubmatch(line, -1) {
					from, link := page, m[1]
					if own := ownAddress.FindStringSubmatch(link); own != nil {
						from, link = "README.md", own[1]
					}
					u, err := url.Parse(link)
					if err != nil || u.Scheme != "" || u.Host != "" {
						continue
					}
					links++
					why, err := follow(tree, from, u, anchors)
					if err != nil {
						return err
					}
					if why != "" {
						broken = append(broken, page+":"+strconv.Itoa(number)+": "+m[1]+": "+why)
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return broken, links, nil
}

// follow returns why a link of a page leads nowhere, or "".
func follow(tree fs.FS, page string, u *url.URL, anchors map[string]map[string]bool) (string, error) {
	target := page
	if u.Path != "" {
		target = path.Join(path.Dir(page), u.Path)
		if !fs.ValidPath(target) {
			return "no such file", nil
		}
		if _, err := fs.Stat(tree, target); err != nil {
			return "no such file", nil
		}
		if inSite(page) && !inSite(target) {
			return "it is not part of the site: write " + blob + target, nil
		}
	}
	if u.Fragment == "" || !strings.HasSuffix(target, ".md") {
		return "", nil
	}
	if anchors[target] == nil {
		text, err := fs.ReadFile(tree, target)
		if err != nil {
			return "", err
		}
		anchors[target] = headings(string(text))
	}
	if !anchors[target][u.Fragment] {
		return target + " has no such heading", nil
	}
	return "", nil
}

func inSite(name string) bool { return strings.HasPrefix(name, "docs/") || name == "docs" }

// headings returns the anchors of a page as GitHub makes them.
func headings(text string) map[string]bool {
	found := make(map[string]bool)
	_ = eachProseLine(text, func(_ int, line string) error {
		for _, m := range ownAnchor.FindAllStringSubmatch(line, -1) {
			found[m[1]] = true
		}
		if m := headingLine.FindStringSubmatch(line); m != nil {
			anchor := slug(linkText.ReplaceAllString(m[1], "$1"))
			name := anchor
			for n := 1; found[name]; n++ {
				name = anchor + "-" + strconv.Itoa(n)
			}
			found[name] = true
		}
		return nil
	})
	return found
}

func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// eachProseLine calls do with each line of a page that is not in a block of code.
func eachProseLine(text string, do func(number int, line string) error) error {
	fence, number := "", 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		marks := strings.TrimLeft(line, " ")
		switch {
		case fence == "" && (strings.HasPrefix(marks, "```") || strings.HasPrefix(marks, "~~~")):
			fence = marks[:3]
		case fence != "" && strings.HasPrefix(marks, fence):
			fence = ""
		case fence == "":
			if err := do(number, line); err != nil {
				return err
			}
		}
	}
	return nil
}
