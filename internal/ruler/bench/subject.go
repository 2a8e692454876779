package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Subject is a kind of work that results can be about. The core runs, compares and reports
// samples without knowing it; the package of the subject says what else a sample of it holds.
type Subject struct {
	// Key is the JSON key of the subject's part of a sample.
	Key string
	// New returns an empty part, to decode one into.
	New func() Part
	// Metrics are those of the part. Nil for none.
	Metrics func() []Metric
	// Compared are the keys of the metrics in which cases are compared, beside the core's.
	Compared []string
	// Rules changes the rules that apply to a result. Nil if those of the core suffice.
	Rules func(*Result, *Rules)
	// ClientWorks is set if the client does the work that is measured, so that its CPU time is
	// not that of a load generator.
	ClientWorks bool
}

// Part is what a sample holds about its subject. It is encoded to JSON under the subject's key.
type Part interface{ Subject() *Subject }

// PartOf returns the part of a type, and the zero value if there is none.
func PartOf[T Part](parts []Part) T {
	for _, p := range parts {
		if t, ok := p.(T); ok {
			return t
		}
	}
	var none T
	return none
}

// rawPart is a part of a subject that the reader does not know. It is kept as it was read.
type rawPart struct {
	subject *Subject
	json.RawMessage
}

func (p *rawPart) Subject() *Subject { return p.subject }

// Subjects lists the subjects of the result, each once, in the order of their first appearance.
func (r *Result) Subjects() []*Subject { return subjectsOf(r.Cases...) }

func (c *Case) subjects() []*Subject { return subjectsOf(c) }

func subjectsOf(cases ...*Case) []*Subject {
	var out []*Subject
	for _, c := range cases {
		for i := range c.Samples {
			for _, p := range c.Samples[i].Parts {
				out = withSubject(out, p.Subject())
			}
		}
	}
	return out
}

// withSubject adds a subject to a list, unless it is there.
func withSubject(list []*Subject, s *Subject) []*Subject {
	if slices.ContainsFunc(list, func(o *Subject) bool { return o.Key == s.Key }) {
		return list
	}
	return append(list, s)
}

// MarshalJSON writes each part under the key of its subject.
func (s Sample) MarshalJSON() ([]byte, error) {
	type sample Sample // without this method
	objects := []any{(*sample)(&s)}
	for _, p := range s.Parts {
		objects = append(objects, map[string]Part{p.Subject().Key: p})
	}
	return JoinObjects(objects...)
}

// JoinObjects encodes values that are JSON objects with at least one field as a single object
// with the fields of all.
func JoinObjects(values ...any) ([]byte, error) {
	var out []byte
	for i, v := range values {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // left to the caller's encoder
		if err := e.Encode(v); err != nil {
			return nil, err
		}
		fields := bytes.TrimSpace(b.Bytes())
		if i > 0 {
			out[len(out)-1] = ','
			fields = fields[1:]
		}
		out = append(out, fields...)
	}
	return out, nil
}

// UnmarshalJSON keeps what it does not know as parts, which decodeParts decodes.
func (s *Sample) UnmarshalJSON(b []byte) error {
	type sample Sample // without this method
	s.Parts = nil
	if err := json.Unmarshal(b, (*sample)(s)); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return err // null
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		name := key.(string)
		if ownFields()[strings.ToLower(name)] || string(value) == "null" {
			continue
		}
		s.Parts = slices.DeleteFunc(s.Parts, func(p Part) bool { return p.Subject().Key == name }) // the last one counts
		s.Parts = append(s.Parts, &rawPart{&Subject{Key: name}, value})
	}
	return nil
}

// ownFields are the JSON keys of Sample itself.
var ownFields = sync.OnceValue(func() map[string]bool {
	own := make(map[string]bool)
	for f := range reflect.TypeFor[Sample]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		own[key] = true
	}
	return own
})

// decodeParts decodes the parts of the given subjects. It leaves others as they were read.
func (s *Sample) decodeParts(subjects []*Subject) error {
	for i, p := range s.Parts {
		raw, ok := p.(*rawPart)
		at := slices.IndexFunc(subjects, func(o *Subject) bool { return o.Key == p.Subject().Key })
		if !ok || at < 0 {
			continue
		}
		part := subjects[at].New()
		if err := json.Unmarshal(raw.RawMessage, part); err != nil {
			return fmt.Errorf("%s of round %d: %w", raw.subject.Key, s.Round, err)
		}
		s.Parts[i] = part
	}
	return nil
}
