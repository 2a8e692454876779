package backupdata

import (
	"fmt"
	"time"
)

// shop is the shape of a real application. Its tables have the shares of a shop that stores its
// events and its customers' documents.
func shop(bytes int64) []*Table {
	part := func(percent int64) int64 { return max(bytes*percent/100, 1) }
	customers := &Table{
		Name: "customers", bytes: part(3), Indexes: []string{"email"},
		Columns: []Column{{"id", Int, false}, {"created_at", Time, false}, {"name", String, false}, {"email", String, false}, {"city", String, false}, {"phone", String, true}, {"newsletter", Bool, false}},
		fill: func(r *row) {
			r.time(20 * time.Minute)
			first, last := of(r, firstNames), of(r, lastNames)
			r.text([]byte(first + " " + last))
			r.text(fmt.Appendf(nil, "%c%s%d@%s.example", 'a'+rune(r.rng.IntN(26)), word(r.rng), r.id, word(r.rng)))
			r.text([]byte(of(r, cities)))
			if r.rng.IntN(4) == 0 {
				r.null()
			} else {
				r.text(fmt.Appendf(nil, "+%d %d %07d", 30+r.rng.IntN(60), 100+r.rng.IntN(900), r.rng.IntN(10_000_000)))
			}
			r.bool(r.rng.IntN(3) == 0)
		},
	}
	products := &Table{
		Name: "products", bytes: part(2), Indexes: []string{"category"},
		Columns: []Column{{"id", Int, false}, {"sku", String, false}, {"category", String, false}, {"title", String, false}, {"description", Text, false}, {"price", Money, false}, {"weight", Float, true}},
		fill: func(r *row) {
			r.text(fmt.Appendf(nil, "SKU-%06d-%02X", r.id, r.rng.IntN(256)))
			r.text([]byte(of(r, common[60:90])))
			r.text(r.words(3 + r.rng.IntN(4)))
			r.text(r.words(20 + r.rng.IntN(80)))
			r.money(99 + r.rng.Int64N(50_000))
			if r.rng.IntN(5) == 0 {
				r.null()
			} else {
				r.float(float64(r.rng.IntN(100_000)) / 1000)
			}
		},
	}
	orders := &Table{
		Name: "orders", bytes: part(10), Indexes: []string{"customer_id", "placed_at"}, References: map[string]*Table{"customer_id": customers},
		Columns: []Column{{"id", Int, false}, {"customer_id", Int, false}, {"placed_at", Time, false}, {"state", String, false}, {"total", Money, false}, {"address", String, false}, {"remark", Text, true}},
		fill: func(r *row) {
			r.int(r.skewed(customers.rows))
			r.time(3 * time.Minute)
			r.text([]byte(of(r, states)))
			r.money(500 + r.rng.Int64N(90_000))
			r.text(fmt.Appendf(nil, "%s Street %d, %05d %s", of(r, lastNames), 1+r.rng.IntN(200), r.rng.IntN(100_000), of(r, cities)))
			if r.rng.IntN(10) > 0 {
				r.null()
			} else {
				r.text(r.words(5 + r.rng.IntN(20)))
			}
		},
	}
	items := &Table{
		Name: "items", bytes: part(22), Indexes: []string{"order_id", "product_id"}, References: map[string]*Table{"order_id": orders, "product_id": products},
		Columns: []Column{{"id", Int, false}, {"order_id", Int, false}, {"product_id", Int, false}, {"quantity", Int, false}, {"price", Money, false}, {"discount", Float, true}},
	}
	items.fill = func(r *row) {
		r.int(1 + (r.id/3)%max(orders.rows, 1))
		r.int(r.skewed(products.rows))
		r.int(1 + r.skewed(9))
		r.money(99 + r.rng.Int64N(50_000))
		if r.rng.IntN(4) > 0 {
			r.null()
		} else {
			r.float(float64(r.rng.IntN(40)) / 100)
		}
	}
	events := &Table{
		Name: "events", bytes: part(28), Indexes: []string{"at"},
		Columns: []Column{{"id", Int, false}, {"at", Time, false}, {"customer_id", Int, true}, {"kind", String, false}, {"payload", JSON, false}},
		fill: func(r *row) {
			r.time(2 * time.Second)
			if r.rng.IntN(3) == 0 {
				r.null()
			} else {
				r.int(r.skewed(customers.rows))
			}
			kind := of(r, actions)
			r.text([]byte(kind))
			r.text(fmt.Appendf(nil, `{"session": "%016x", "product": %d, "path": "/%s/%s", "agent": "%s", "ms": %d, "ip": "10.%d.%d.%d", "ok": %t}`,
				r.rng.Uint64(), r.skewed(products.rows), word(r.rng), word(r.rng), of(r, agents), r.skewed(2000), r.rng.IntN(256), r.rng.IntN(256), r.rng.IntN(256), kind != "error"))
		},
	}
	documents := documents(part(20))
	attachments := attachments(part(15))
	return []*Table{customers, products, orders, items, events, documents, attachments}
}

// documents is a table of texts of a page or two.
func documents(bytes int64) *Table {
	return &Table{
		Name: "documents", bytes: bytes,
		Columns: []Column{{"id", Int, false}, {"written_at", Time, false}, {"author", String, false}, {"title", String, false}, {"body", Text, false}},
		fill: func(r *row) {
			r.time(time.Hour)
			r.text([]byte(of(r, firstNames) + " " + of(r, lastNames)))
			r.text(r.words(4 + r.rng.IntN(6)))
			r.text(r.words(150 + r.rng.IntN(700)))
		},
	}
}

// attachments is a table of files.
func attachments(bytes int64) *Table {
	return &Table{
		Name: "attachments", bytes: bytes,
		Columns: []Column{{"id", Int, false}, {"name", String, false}, {"mime", String, false}, {"content", Bytes, false}},
		fill: func(r *row) {
			r.text(fmt.Appendf(nil, "%s-%d.bin", word(r.rng), r.id))
			r.text([]byte(of(r, mimeTypes)))
			r.bytes(r.file(1000 + r.rng.IntN(8000)))
		},
	}
}
