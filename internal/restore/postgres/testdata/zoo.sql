CREATE TABLE public.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text NOT NULL, price numeric(10,2));
INSERT INTO public.orders (what, price) SELECT 'thing ' || g, g / 7.0 FROM generate_series(1, 20000) g;
CREATE INDEX ON public.orders (what);
