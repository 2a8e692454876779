package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ReadDoc reads a report that was written as JSON and validates it. Reports of
// before there was a version are read as version 1.
func ReadDoc(r io.Reader) (*Doc, error) {
	var d Doc
	dec := json.NewDecoder(r)
	switch err := dec.Decode(&d); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("read report: it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("read report: it ends in the middle, as if cut short")
	case err != nil:
		return nil, fmt.Errorf("read report: %w", err)
	}
	if d.Schema != "" && d.Schema != Schema {
		return nil, fmt.Errorf("read report: schema %q, want %q", d.Schema, Schema)
	}
	d.Schema = Schema
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return &d, nil
}
