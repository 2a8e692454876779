package archive

import (
	"encoding/json"
	"errors"
)

// A ChunkError says what is wrong with a chunk. With errors.Is it matches its fault:
// [ErrMissing], [ErrTruncated], [ErrCorrupt], [ErrSwapped] or [ErrWrongKey].
type ChunkError struct {
	Path     string `json:"path"`
	File     string `json:"file"` // the object, relative to the backup
	Fault    error  `json:"-"`
	Expected string `json:"expected,omitempty"`
	Got      string `json:"got,omitempty"`
	Err      error  `json:"-"` // the underlying error, if any
}

// The faults of a chunk.
var (
	ErrMissing   = errors.New("missing")
	ErrTruncated = errors.New("truncated")
	ErrCorrupt   = errors.New("corrupt")
	ErrSwapped   = errors.New("holds another chunk's bytes")
	ErrWrongKey  = errors.New("wrong key")
)

// The faults of a manifest.
var (
	// ErrIncomplete says that a backup has no manifest: it was not finished.
	ErrIncomplete = errors.New("backup is incomplete: it has no manifest")

	// ErrEdited says that a manifest does not match its own digest.
	ErrEdited = errors.New("manifest was changed after it was written")

	// ErrNewer says that a manifest was written by a later version of weir.
	ErrNewer = errors.New("backup was written by a newer weir")

	// ErrNoKey says that a backup is encrypted and no key was given.
	ErrNoKey = errors.New("backup is encrypted and no key was given")
)

// Error names the chunk, the fault, and what was expected and found.
func (e *ChunkError) Error() string {
	s := "chunk " + e.Path + " (" + e.File + "): " + e.Fault.Error()
	if e.Expected != "" {
		s += ": expected " + e.Expected + ", got " + e.Got
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the fault and the cause.
func (e *ChunkError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Fault}
	}
	return []error{e.Fault, e.Err}
}

// Hint says what to do about the fault.
func (e *ChunkError) Hint() string {
	switch {
	case errors.Is(e.Fault, ErrWrongKey):
		return "give the private key of one of the recipients that the manifest lists"
	case errors.Is(e.Fault, ErrMissing), errors.Is(e.Fault, ErrTruncated):
		return "copy the file again from where it is whole, or use another backup"
	}
	return "the bytes are not those that were written: use another copy or another backup, and look at the storage"
}

// MarshalJSON writes the fault and the cause as text.
func (e *ChunkError) MarshalJSON() ([]byte, error) {
	type plain ChunkError
	out := struct {
		*plain
		Fault string `json:"fault"`
		Cause string `json:"cause,omitempty"`
		Hint  string `json:"hint"`
	}{plain: (*plain)(e), Fault: e.Fault.Error(), Hint: e.Hint()}
	if e.Err != nil {
		out.Cause = e.Err.Error()
	}
	return json.Marshal(out)
}
