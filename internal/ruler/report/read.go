package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ReadDoc reads a report written as JSON and validates it. Reports without a schema version are
// read as version 1.
func ReadDoc(r io.Reader) (*Doc, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("read report: it is empty")
	}
	// Check the version first: in another version, even the types of the fields may differ.
	var head struct {
		Schema string `json:"schema"`
	}
	var syntax *json.SyntaxError
	switch err := json.Unmarshal(b, &head); {
	case errors.As(err, &syntax) && syntax.Offset >= int64(len(b)):
		return nil, fmt.Errorf("read report: it ends in the middle, as if cut short (%d bytes)", len(b))
	case err != nil:
		return nil, fmt.Errorf("read report: %w", err)
	case head.Schema != "" && head.Schema != Schema:
		return nil, fmt.Errorf("read report: schema %q, want %q: use the weir that wrote it", head.Schema, Schema)
	}
	var d Doc
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	d.Schema = Schema
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	return &d, nil
}
