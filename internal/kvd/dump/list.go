package dump

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// weir kv range --limit none --json prints one object, {"items": [...], "more": false}. It has
// no digest, and no times to live or leases.

// noDump is the error for a file that begins in another way.
const noDump = "this is neither what weir kv export writes nor what weir kv range --limit none --json prints"

func (d *Reader) openList() error {
	d.list = json.NewDecoder(d.in)
	d.Ageless = true
	for _, want := range []any{json.Delim('{'), "items", json.Delim('[')} {
		if token, err := d.list.Token(); err != nil || token != want {
			return &DamagedError{Why: noDump}
		}
	}
	return nil
}

// nextOfList reads the next item of a list, and after the last one the rest of the object.
func (d *Reader) nextOfList(l *line) (more bool, err error) {
	if d.list.More() {
		d.at = d.keys + 1
		if err := d.list.Decode(l); err != nil {
			return false, &DamagedError{Why: fmt.Sprintf("item %d: %v", d.keys+1, err)}
		}
		return true, nil
	}
	const cut = "the list ends in its middle: it was cut short"
	rest := struct {
		closed, more, keysOnly bool
	}{}
	for {
		token, err := d.list.Token()
		switch {
		case errors.Is(err, io.EOF):
			switch {
			case !rest.closed:
				return false, &DamagedError{Why: cut}
			case rest.more:
				return false, &DamagedError{Why: "the list is incomplete: it says that there are more items; list with --limit none"}
			case rest.keysOnly:
				return false, &DamagedError{Why: "the list is without values (--keys-only)"}
			}
			return false, nil
		case err != nil:
			return false, &DamagedError{Why: cut}
		case rest.closed:
			return false, &DamagedError{Why: "something follows the list"}
		case token == json.Delim('}'):
			rest.closed = true
		case token == "more" || token == "keys_only":
			value, err := d.list.Token()
			if err != nil {
				return false, &DamagedError{Why: cut}
			}
			if token == "more" {
				rest.more = value == true
			} else {
				rest.keysOnly = value == true
			}
		}
	}
}
