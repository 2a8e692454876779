package pgwire_test

import (
	"fmt"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// The loop of every reader: look at the header, wait for the rest, act on the
// type, step on.
func ExamplePeek() {
	var buf []byte
	buf = pgwire.AppendParse(buf, "s1", "select $1 + 1", []uint32{23})
	buf = pgwire.AppendSync(buf)
	buf = append(buf, "Q\x00\x00"...) // the start of the next message

	const limit = 1 << 30
	for {
		typ, length, ok := pgwire.Peek(buf)
		if !ok {
			fmt.Println("wait for more")
			return
		}
		if length < pgwire.HeaderLen || length > limit {
			fmt.Println(pgwire.ErrMalformed)
			return
		}
		if length > len(buf) {
			fmt.Println("wait for", length-len(buf), "bytes more")
			return
		}
		body := buf[pgwire.HeaderLen:length]
		switch typ {
		case pgwire.ClientParse:
			m, err := pgwire.ParseParse(body)
			fmt.Printf("Parse %s: %s, %d parameter types, %v\n", m.Name, m.SQL, m.NumOIDs(), err)
		case pgwire.ClientSync:
			fmt.Println("Sync")
		}
		buf = buf[length:]
	}
	// Output:
	// Parse s1: select $1 + 1, 1 parameter types, <nil>
	// Sync
	// wait for more
}

func ExampleError() {
	err := pgwire.NewFatal(pgwire.CodeTooManyConnections, "no more connections allowed for user %q", "app")
	err.Hint = "Raise max_clients or close idle sessions."
	fmt.Println(err)
	// Output:
	// FATAL: no more connections allowed for user "app"; hint: Raise max_clients or close idle sessions. (SQLSTATE 53300)
}

func ExampleParseOptions() {
	settings, err := pgwire.ParseOptions(`-c search_path=shop,\ public --statement-timeout=5s`)
	fmt.Println(settings, err)
	fmt.Println(pgwire.FormatOptions(settings))
	// Output:
	// [{search_path shop, public} {statement_timeout 5s}] <nil>
	// -c search_path=shop,\ public -c statement_timeout=5s
}
