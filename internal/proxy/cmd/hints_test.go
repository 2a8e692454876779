//go:build linux

package proxycmd

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// docs/reference/hints.md is of the table that the scanner's tests hold against what it
// reads; -update writes it.
func TestHintReferenceIsCurrent(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(hintHead)
	for _, k := range sqlscan.HintKeys() {
		effect := k.Effect
		if effect == "" {
			effect = "none yet: it is read, and reported as having none"
		}
		fmt.Fprintf(&page, "\n## %s\n\nEffect: %s.\n\n| hint | meaning | as SQLCommenter |\n| --- | --- | --- |\n", k.Key, effect)
		for _, v := range k.Values {
			hint, commenter := k.Key+":"+v.Value, fmt.Sprintf("`/*%s='%s'*/`", k.Key, v.Value)
			if v.Value == "" {
				hint, commenter = k.Key, ""
			}
			fmt.Fprintf(&page, "| `/* %s */` | %s | %s |\n", hint, v.Means, commenter)
		}
	}
	const path = "../../../docs/reference/hints.md"
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, page.Bytes()) {
		t.Errorf("docs/reference/hints.md is not current (%v): go test ./internal/proxy/cmd -run %s -update", err, t.Name())
	}
}

const hintHead = `# Hints

Written by ` + "`go test ./internal/proxy/cmd -run TestHintReferenceIsCurrent -update`" + ` from the table of the scanner.

A hint is a comment, ` + "`/* … */` or `-- …`" + `, in front of a statement's first word. A comment may hold several hints in any order, separated by spaces or commas. SQLCommenter's form, ` + "`/*key='value',key2='value2'*/`" + `, is read at the end of the statement, too. weir reads a comment if every word in it is a hint, or if its first word is a hint with a colon. Any other comment is prose: ` + "`/* bacth */`" + ` and ` + "`/* batch job nightly */`" + ` have no effect and are not reported. If a key has several values, the first valid one counts. Text inside string literals is never a hint. Comments reach the server unchanged.

weir reports a hint that is invalid, and a ` + "`ttl`" + ` whose answer it cannot cache, once for each session: to clients of PostgreSQL as a notice, for those of MySQL and MariaDB in its log; ` + "`weir_proxy_bad_hints_total`" + ` counts them. It does not report a ` + "`traceparent`" + `, which libraries write that do not know of weir, a ` + "`tag` without `ttl`" + `, or ` + "`batch`" + ` in front of a statement that cannot join a group, so that an application can send it with every statement. [Grouping writes](../proxy.md#grouping-writes) says which writes are grouped, and [caching reads](../proxy.md#caching-reads) which reads are cached. The ` + "`mariadb` and older `mysql`" + ` clients remove comments: start them with ` + "`--comments`" + `.
`
