package wire

import "fmt"

// ChangeKind is a kind of change.
type ChangeKind uint8

// Kinds of changes.
const (
	ChangePut    ChangeKind = iota + 1 // the key has a new value
	ChangeDelete                       // it was deleted
	ChangeExpire                       // its time to live or its lease has ended
)

// Change is a change of a key, for watches.
type Change struct {
	Kind     ChangeKind
	Key      string
	Value    []byte // of ChangePut
	Revision uint64 // of the operation
	Lease    uint64 // the lease of the key, of ChangePut
}

// AppendChanges appends the binary form of a list of changes to b.
func AppendChanges(b []byte, changes []Change) []byte {
	for i := range changes {
		c := &changes[i]
		b = append(b, byte(c.Kind))
		b = appendUint(b, c.Revision)
		b = appendString(b, c.Key)
		if c.Kind == ChangePut {
			b = appendString(b, c.Value)
			b = appendUint(b, c.Lease)
		}
	}
	return b
}

// ParseChanges decodes the output of AppendChanges, the whole of b. Values share b's memory.
func ParseChanges(b []byte) ([]Change, error) {
	r := reader{b: b}
	var out []Change
	for len(r.b) > 0 {
		c := Change{Kind: ChangeKind(r.byte()), Revision: r.uint(), Key: r.string()}
		switch c.Kind {
		case ChangePut:
			c.Value, c.Lease = r.bytes(), r.uint()
		case ChangeDelete, ChangeExpire:
		default:
			r.fail(errUnknown)
		}
		if r.err != nil {
			break
		}
		out = append(out, c)
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("decode changes: %w", err)
	}
	return out, nil
}
