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

A hint is a comment, ` + "`/* … */` or `-- …`" + `, in front of a statement's first word; several stand in one comment in any order, with spaces or commas between them. ` + "SQLCommenter's form, `/*key='value',key2='value'*/`" + `, counts at the end of the statement, too. A comment with a word that is no hint is prose, and is left alone, unless its first word is a hint with a colon. Of several values for a key the first one counts. Hints inside string literals are no hints, and the comment goes on to the server as it is.

A hint that cannot be used is reported once for each session: to clients of PostgreSQL as a notice, for those of MySQL and MariaDB in weir's log; ` + "`weir_proxy_bad_hints_total`" + ` counts them. [Grouping writes](../proxy.md#grouping-writes) says when a write with a hint is grouped. The ` + "`mariadb` and older `mysql`" + ` clients remove comments: start them with ` + "`--comments`" + `.
`
