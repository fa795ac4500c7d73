"""From grades to the advantage and weight of every trained token."""
