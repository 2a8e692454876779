package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kind is the kind of a record. The log interprets Entry and Reset. The others have names here
// so that Verify can count them.
type Kind uint8

// Kinds of records.
const (
	Entry   Kind = iota + 1 // an entry of the replicated log; it replaces an existing one of its Index and all after it
	Reset                   // a snapshot at Index of Term replaces the whole log: all earlier entries are void
	Hard                    // term, vote and commit of the raft engine
	View                    // the view that this replica has moved to
	Witness                 // an operation in the witness pool
	Intent                  // a weak write that this replica has acknowledged
	Drop                    // Witness or Intent records that are no longer needed
	Other                   // anything else; kinds up to MaxKind are accepted

	// MaxKind is the highest kind that callers may use.
	MaxKind Kind = 127

	kindOpen  Kind = 0xf0 // the log was opened here
	kindClose Kind = 0xf1 // the log was closed here
	kindSeal  Kind = 0xf2 // the next segment has its name; nothing follows in this one
)

var kindNames = map[Kind]string{
	Entry: "entry", Reset: "reset", Hard: "hard", View: "view", Witness: "witness", Intent: "intent", Drop: "drop",
	Other: "other", kindOpen: "open", kindClose: "close", kindSeal: "seal",
}

// String returns the name of the kind, as in findings.
func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// Record is a part of a round.
type Record struct {
	Kind  Kind
	Term  uint64 // of an Entry or Reset; free for the caller otherwise
	Index uint64 // of an Entry or Reset; free for the caller otherwise
	Data  []byte
}

var errShortRecord = errors.New("a record is cut short")

// appendRecord appends the encoding of r to b.
func appendRecord(b []byte, r *Record) []byte {
	b = append(b, byte(r.Kind))
	b = binary.AppendUvarint(b, r.Term)
	b = binary.AppendUvarint(b, r.Index)
	b = binary.AppendUvarint(b, uint64(len(r.Data)))
	return append(b, r.Data...)
}

// decodeRecord decodes the record at the start of b and returns the rest. Data aliases b.
func decodeRecord(b []byte) (Record, []byte, error) {
	if len(b) == 0 {
		return Record{}, nil, errShortRecord
	}
	r := Record{Kind: Kind(b[0])}
	b = b[1:]
	var size uint64
	for _, field := range []*uint64{&r.Term, &r.Index, &size} {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return Record{}, nil, errShortRecord
		}
		*field, b = v, b[n:]
	}
	if size > uint64(len(b)) {
		return Record{}, nil, errShortRecord
	}
	r.Data = b[:size:size]
	return r, b[size:], nil
}
