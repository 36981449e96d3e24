"""Sentences, made up for this, of languages whose own letters begin the mojibake of others: Ã, Â, á and the like."""

PORTUGUESE = """Amanhã é domingo, e a minha irmã não vem.
Atenção: alta tensão!
O avô comprou maçãs, limões e um pão de manhã.
As crianças já estão na estação de São João.
A televisão e o rádio não funcionam.
A manhã está fria; a lã é quente.
Você vê o avião? Não, só vejo nuvens.
Ela é alemã, e o irmão dela é espanhol.
O chá de maçã custa três euros.
Os cidadãos pedem informações à administração.
A população da região é pequena.
Põe a mão no coração.
As eleições são no verão.
O capitão não tem razão.
Há dez lições no livro de orações.
A romã e a avelã são frutos.
Ninguém sabe onde está o ímã.
Ela tem fé e paciência."""
VIETNAMESE = """Tôi đã ăn cơm rồi.
Mã số của anh là gì?
Cây cầu này rất cũ.
Âm nhạc làm tôi vui.
Ngã tư đường ở đâu?
Bà ấy là giáo viên dạy toán.
Chúng tôi sống ở Hà Nội.
Xã hội thay đổi nhanh.
Hãy nói chậm lại, tôi chưa hiểu.
Đã lâu không gặp, anh khỏe chứ?
Trời hôm nay rất đẹp.
Quả dưa hấu này ngọt lắm.
Cô ấy mua hai quyển sách.
Nhà ga cách đây ba cây số.
Ông ấy bị ngã trên cầu thang.
Thật vậy à? Tôi không tin.
Đây là lần đầu tiên tôi đến đây.
Nước lã và hồ."""
TURKISH = """Hâlâ bekliyorum, kâr yok.
İstanbul'da hava çok güzel.
Bu kâğıt kimin?
Öğretmen öğrencilere soru sordu.
Şimdi eve gidiyorum.
Çocuklar bahçede oynuyor.
Rüzgâr kuzeyden esiyor.
Dükkân saat dokuzda açılıyor.
Hikâye çok uzun.
Güneş doğudan doğar.
Yarın İzmir'e gideceğiz.
Ağabeyim mühendis oldu.
Lâle bahçede açtı.
Mahkûm serbest bırakıldı.
Şu ağacın altında oturalım.
Balık suda yaşar.
Işıklar sönünce uyuduk.
Âşık oldum, ne yapayım?"""
