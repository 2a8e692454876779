package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
)

// withoutJSON are the verbs that have no --json, and why: a new verb says which it is.
var withoutJSON = map[string]string{
	"weir backup schedule": "prints files for systemd and cron",
	"weir demo":            "is for people",
	"weir kv serve":        "runs until stopped; /status.json has its state",
	"weir outbox relay":    "runs until stopped; /status.json has its state",
	"weir pgbouncer":       "runs until stopped; the console has its state",
	"weir proxy":           "runs until stopped; the console has its state",
	"weir proxy convert":   "prints YAML",
	"weir wal-fetch":       "prints nothing",
}

// docs/reference/json.md and json.schema.json are what the types say that verbs print;
// -update writes them.
func TestJSONReferenceIsCurrent(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(jsonHead)
	doc := &jsonDoc{comments: make(map[string]map[string]string), defs: make(map[string]any), t: t}
	var order []reflect.Type
	verbs := make(map[reflect.Type][]*cobra.Command)
	for _, verb := range leaves(newRoot()) {
		name := verb.CommandPath()
		of := cli.JSONOf(verb)
		if of == nil {
			if withoutJSON[name] == "" && !verb.HasSubCommands() {
				t.Errorf("%s has no --json: give it one, or say in withoutJSON what it prints", name)
			}
			continue
		}
		if withoutJSON[name] != "" {
			t.Errorf("%s has --json, and is in withoutJSON", name)
		}
		if name == "weir report" {
			doc.report = of.Elem()
		}
		if verbs[of] == nil {
			order = append(order, of)
		}
		verbs[of] = append(verbs[of], verb)
	}
	for _, of := range order {
		var names []string
		for _, verb := range verbs[of] {
			names = append(names, verb.CommandPath())
			doc.defs[verb.CommandPath()] = doc.schema(of)
		}
		fmt.Fprintf(&page, "\n## %s\n\n`--json`: %s.\n", strings.Join(names, ", "), verbs[of][0].Flags().Lookup("json").Usage)
		doc.describe(&page, of)
	}
	if doc.report != nil {
		page.WriteString("\n## A report\n\nWhat `weir report`, `weir profile`, `weir profile diff`, `weir bench report` and the other verbs of `weir bench` print with `--json`.\n")
		doc.fields(&page, doc.report)
	}
	text, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "What verbs of weir print with --json",
		"$defs":   doc.defs,
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	current(t, "json.md", page.Bytes())
	current(t, "json.schema.json", append(text, '\n'))
}

const jsonHead = `# What ` + "`--json`" + ` prints

Written by ` + "`go test ./cmd/weir -run TestJSONReferenceIsCurrent -update`" + ` from the types that verbs print. Within a major version fields are only added; pass over those that you do not know. A field marked "optional" is left out when it is empty. ` + "`[]`" + ` is a list, ` + "`{}`" + ` an object with names that are not fixed. The same for programs, as JSON Schema: [json.schema.json](json.schema.json), an entry of ` + "`$defs`" + ` for each verb.

Results go to standard output, progress and errors to standard error. Exit codes are those of the [reference](index.md#exit-codes). What ` + "`weir profile`" + ` and ` + "`weir bench`" + ` write into ` + "`--out`" + ` are results as in [schema.md](../schema.md).
`

// leaves lists the verbs that do something, in order.
func leaves(cmd *cobra.Command) (list []*cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return nil
	}
	if cmd.HasParent() && cmd.Runnable() {
		list = append(list, cmd)
	}
	for _, sub := range cmd.Commands() {
		list = append(list, leaves(sub)...)
	}
	return list
}

// jsonDoc describes Go types as encoding/json writes them.
type jsonDoc struct {
	t        *testing.T
	comments map[string]map[string]string // by package path: Type.Field
	defs     map[string]any               // of JSON Schema: verbs, and types as package.Type
	report   reflect.Type                 // what weir report prints; other verbs print it, too
}

// describe writes what a verb prints: a table of fields.
func (d *jsonDoc) describe(w *bytes.Buffer, of reflect.Type) {
	list := false
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		list = list || of.Kind() == reflect.Slice
		of = of.Elem()
	}
	if of == d.report {
		w.WriteString("\nA [report](#a-report).\n")
		return
	}
	if list {
		w.WriteString("\nA list, each of:\n")
	}
	d.fields(w, of)
}

func (d *jsonDoc) fields(w *bytes.Buffer, of reflect.Type) {
	w.WriteString("\n| field | type | meaning |\n| --- | --- | --- |\n")
	d.rows(w, "", of, nil)
}

// rows writes a line for each field below prefix. A type inside itself is not followed.
func (d *jsonDoc) rows(w *bytes.Buffer, prefix string, of reflect.Type, within []reflect.Type) {
	for _, f := range jsonFields(of) {
		kind, inner, suffix := d.kind(f.Type)
		if f.optional {
			kind += ", optional"
		}
		fmt.Fprintf(w, "| `%s%s%s` | %s | %s |\n", prefix, f.name, suffix, kind, strings.ReplaceAll(d.comment(f.owner, f.Name), "|", "\\|"))
		if inner != nil && !slices.Contains(within, inner) {
			d.rows(w, prefix+f.name+suffix+".", inner, append(slices.Clone(within), inner))
		}
	}
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

func implements(of, what reflect.Type) bool {
	return of.Implements(what) || reflect.PointerTo(of).Implements(what)
}

// kind names a type, and returns the struct that it holds, with what its name is
// followed by.
func (d *jsonDoc) kind(of reflect.Type) (name string, inner reflect.Type, suffix string) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case of == reflect.TypeFor[time.Time]():
		return "time, RFC 3339", nil, ""
	case of == reflect.TypeFor[time.Duration]():
		return "nanoseconds", nil, ""
	case of == reflect.TypeFor[json.RawMessage]():
		return "any", nil, ""
	case implements(of, textMarshaler) && !implements(of, jsonMarshaler):
		return "text", nil, ""
	case implements(of, jsonMarshaler):
		if jsonOther[of.String()] == "" {
			d.t.Errorf("%v writes its own JSON: describe it in jsonOther", of)
		}
		return jsonOther[of.String()], nil, ""
	}
	switch of.Kind() {
	case reflect.Bool:
		return "true or false", nil, ""
	case reflect.String:
		return "text", nil, ""
	case reflect.Float32, reflect.Float64:
		return "number", nil, ""
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "whole number", nil, ""
	case reflect.Slice, reflect.Array:
		if of.Elem().Kind() == reflect.Uint8 {
			return "base64", nil, ""
		}
		name, inner, suffix = d.kind(of.Elem())
		return "list: " + name, inner, "[]" + suffix
	case reflect.Map:
		name, inner, suffix = d.kind(of.Elem())
		return "object: " + name, inner, "{}" + suffix
	case reflect.Struct:
		return "object", of, ""
	}
	d.t.Errorf("%v: what is it in JSON?", of)
	return "", nil, ""
}

// jsonOther is what types that write themselves write.
var jsonOther = map[string]string{
	"archive.ChunkError": "object: `path`, `file`, `fault`, `cause`, `hint`",
	"measure.Hist":       "object: a histogram as in schema.md",
}

// schema is a type in JSON Schema.
func (d *jsonDoc) schema(of reflect.Type) map[string]any {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	name, _, _ := d.kind(of)
	switch name {
	case "time, RFC 3339":
		return map[string]any{"type": "string", "format": "date-time"}
	case "nanoseconds", "whole number":
		return map[string]any{"type": "integer"}
	case "number":
		return map[string]any{"type": "number"}
	case "text":
		return map[string]any{"type": "string"}
	case "base64":
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	case "true or false":
		return map[string]any{"type": "boolean"}
	case "any":
		return map[string]any{}
	}
	switch of.Kind() {
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": []string{"array", "null"}, "items": d.schema(of.Elem())}
	case reflect.Map:
		return map[string]any{"type": []string{"object", "null"}, "additionalProperties": d.schema(of.Elem())}
	}
	if implements(of, jsonMarshaler) {
		return map[string]any{"type": "object"}
	}
	ref := map[string]any{"$ref": "#/$defs/" + of.String()}
	if d.defs[of.String()] != nil {
		return ref
	}
	d.defs[of.String()] = ref // until it is known: it may hold itself
	properties, required := make(map[string]any), []string{}
	for _, f := range jsonFields(of) {
		p := d.schema(f.Type)
		if c := d.comment(f.owner, f.Name); c != "" {
			p["description"] = c
		}
		properties[f.name] = p
		if !f.optional {
			required = append(required, f.name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	d.defs[of.String()] = s
	return ref
}

// jsonField is a field as encoding/json sees it.
type jsonField struct {
	reflect.StructField
	name     string
	owner    reflect.Type // the struct that declares it
	optional bool
}

// jsonFields lists the fields of a struct, those of embedded structs in their place. A
// field hides those of its name that are embedded deeper.
func jsonFields(of reflect.Type) (list []jsonField) {
	alternatives := 0 // embedded pointers, of which one is set
	for i := range of.NumField() {
		if f := of.Field(i); f.Anonymous && f.Type.Kind() == reflect.Pointer {
			alternatives++
		}
	}
	for i := range of.NumField() {
		f := of.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if f.Anonymous && name == "" && inner.Kind() == reflect.Struct {
			for _, e := range jsonFields(inner) {
				e.optional = e.optional || alternatives > 1
				if !slices.ContainsFunc(list, func(have jsonField) bool { return have.name == e.name }) {
					list = append(list, e)
				}
			}
			continue
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		list = slices.DeleteFunc(list, func(have jsonField) bool { return have.name == name })
		list = append(list, jsonField{f, name, of, strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")})
	}
	return list
}

const module = "github.com/weirdb/weir/"

// comment returns what the source says of a field.
func (d *jsonDoc) comment(owner reflect.Type, field string) string {
	path, ours := strings.CutPrefix(owner.PkgPath(), module)
	if !ours {
		return ""
	}
	if d.comments[path] == nil {
		d.comments[path] = commentsOf(d.t, path)
	}
	text := d.comments[path][owner.Name()+"."+field]
	if text == "" {
		d.t.Errorf("%v.%s: say in a comment what it is", owner, field)
	}
	// "Version is what the server calls itself" is of a field that is named already.
	for _, begin := range []string{field + " is ", field + " are ", field + " "} {
		if rest, ok := strings.CutPrefix(text, begin); ok {
			return rest
		}
	}
	return text
}

// commentsOf reads the comments of all fields of a package's types.
func commentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, file := range goFiles(t, dir) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			of, ok := spec.Type.(*ast.StructType)
			if !ok {
				return false
			}
			for _, f := range of.Fields.List {
				text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
				for _, name := range f.Names {
					found[spec.Name.Name+"."+name.Name] = text
				}
			}
			return false
		})
	}
	return found
}
